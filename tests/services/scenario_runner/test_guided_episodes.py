"""Guided episodes in the fleet: the environment reads the failed attempt, and its words end the prompt."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS, TIMEOUTS, Fleet
from tests.services.scenario_runner.support import refusal, register, run_spec, submit

from blob_store import BlobRef
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.domain.environments import (
    BodyUnreadable,
    EnvironmentBroken,
    EpisodeToPlay,
    Opened,
    PythonEnvironment,
    TcpEnvironment,
)
from scenario_runner.wire.environments import opened_to_wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall, Turn

GUIDED = PythonEnvironment("guided", str(ENVIRONMENTS / "guided.py"))
CELLAR = '{"place": "cellar"}'
HINT = "You looked in barn and said 'attic'. It begins with 'c'."


async def attempt(fleet: Fleet, episode: str = "first") -> BlobRef:
    """A stored attempt that looked in the barn and said attic."""
    call = ToolCall(call_id="c", name="look", arguments_json='{"place": "barn"}')
    opened = await fleet.open("find", CELLAR, source=GUIDED, episode=episode)
    ref = await fleet.stored(opened, "attic", Turn(text="", tool_calls=[call]))
    await fleet.leases.close(opened.lease_id)
    return ref


async def guided(fleet: Fleet, after: BlobRef, scenario: str = "find", args: str = CELLAR) -> Opened:
    """Open the second attempt."""
    fleet.episodes.rows["again"] = EpisodeToPlay(
        "again", GUIDED, scenario, args, fleet.clock.now, guided_after=after
    )
    opened = await fleet.leases.open("again")
    fleet.played[opened.lease_id] = "again"
    return opened


async def test_the_second_attempt_reads_what_the_scenario_makes_of_the_first(fleet: Fleet) -> None:
    opened = await guided(fleet, await attempt(fleet))
    assert [dict(message) for message in opened.prompt] == [
        {"role": "user", "content": f"Where is it?\n\n{HINT}", "name": ""}
    ]
    assert opened.guidance == opened_to_wire(opened, "x").guidance == HINT
    assert parts_of(opened) == [("text", HINT)]
    (lease,) = fleet.leases._leases.values()
    assert lease.episode.failed is None, "a lease that has ended is kept for long, an attempt is large"
    assert (await fleet.grade(opened, "cellar")).reward == 1.0


def parts_of(opened: Opened) -> list[tuple[str, str]]:
    return [(one.kind, one.text) for one in opened_to_wire(opened, "x").guidance_parts]


async def test_the_kinds_of_guidance_come_apart(fleet: Fleet) -> None:
    opened = await guided(fleet, await attempt(fleet), "told")
    assert parts_of(opened) == [("plan", "Look before you answer."), ("hint", "It begins with 'c'.")]
    assert opened.prompt[0]["content"] == f"Where is it?\n\n{opened.guidance}"


async def test_an_episode_that_is_not_guided_has_no_guidance(fleet: Fleet) -> None:
    opened = await fleet.open("find", CELLAR, source=GUIDED)
    assert (opened.guidance, opened.prompt[0]["content"]) == ("", "Where is it?")
    assert parts_of(opened) == []


async def test_an_attempt_that_cannot_be_read_opens_nothing(fleet: Fleet) -> None:
    before = fleet.leases.num_alive
    with pytest.raises(BodyUnreadable, match="bodies/gone"):
        await guided(fleet, BlobRef("bodies/gone", "0" * 64, 1))
    assert fleet.leases.num_alive == before


@pytest.mark.parametrize(
    ("scenario", "says"), [("mute", "returned ' ', not a text"), ("bare", "declares no guidance")]
)
async def test_a_scenario_without_words_is_broken(fleet: Fleet, scenario: str, says: str) -> None:
    """No episode is played as if it had been guided."""
    with pytest.raises(EnvironmentBroken, match=says):
        await guided(fleet, await attempt(fleet), scenario, "{}")


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "upcycle.environment.serve", GUIDED.path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline().partition('=')[2])}"
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def test_an_environment_that_is_served_elsewhere_guides_too(fleet: Fleet, served: str) -> None:
    host, source = TcpHost(TIMEOUTS), TcpEnvironment("guided", served)
    assert (await host.describe(source)).guided == {"find", "told", "mute"}
    plain = EpisodeToPlay("e", source, "find", CELLAR, fleet.clock.now)
    calls = [{"name": "look", "arguments": {"place": "barn"}}]
    seen = {"answer": "attic", "trajectory": {"turns": [{"text": "", "tool_calls": calls}]}}
    for episode, hint in ((replace(plain, failed=seen), HINT), (plain, "")):
        environment = await host.start(episode)
        assert environment.guidance == hint
        await environment.close()


async def guided_run(runner: Runner, *scenarios: str) -> taskset_pb2.RunSpec:
    """A run with guidance over a task of each scenario."""
    source = taskset_pb2.PythonSource(path=GUIDED.path)
    environment = taskset_pb2.EnvironmentSpec(name=GUIDED.name, python=source)
    tasks = [
        taskset_pb2.Task(slug=name, scenario=name, args_json=CELLAR if name == "find" else "{}")
        for name in scenarios
    ]
    split = common_pb2.SPLIT_TRAIN
    taskset = taskset_pb2.Taskset(name="places", split=split, environment=environment, tasks=tasks)
    await register(runner, taskset)
    training = taskset_pb2.TrainingConfig(guidance="on_failure")
    return run_spec(common_pb2.PURPOSE_TRAIN, taskset="places", training=training)


async def test_a_run_whose_scenario_has_no_guidance_is_refused_at_submit(runner: Runner) -> None:
    error = await refusal(submit(runner, await guided_run(runner, "find", "bare")))
    assert error.code().name == "INVALID_ARGUMENT"
    assert error.details() == (
        "spec.training.guidance is 'on_failure', and of environment 'guided' the scenario 'bare' declares "
        "none: write @bare.guidance in its file, or leave the option out"
    )


async def test_a_run_whose_scenarios_guide_is_taken_and_an_evaluation_with_guidance_refused(
    runner: Runner,
) -> None:
    spec = await guided_run(runner, "find")
    assert (await submit(runner, spec)).spec.training.guidance == "on_failure"
    spec.purpose = common_pb2.PURPOSE_EVAL
    error = await refusal(submit(runner, spec, "r2"))
    assert error.details() == "spec.training is for purpose TRAIN only; this run has purpose EVAL"
