"""Generators in the fleet: each new task is made in a process of its own, and what fails is named."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS, TIMEOUTS, Fleet
from tests.services.scenario_runner.support import (
    TRAIN,
    explain,
    get,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.scenario_runner.test_nothing_to_learn import Excluding

from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.domain.environments import (
    EpisodeFault,
    EpisodeTimeout,
    PythonEnvironment,
    TaskOrder,
    TcpEnvironment,
)
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested

GENERATING = PythonEnvironment("generating", str(ENVIRONMENTS / "generating.py"))
ORDER = TaskOrder(GENERATING, "count", 1, '{"upto": 7}', solved=False)


async def test_a_process_makes_the_task_and_ends(fleet: Fleet) -> None:
    made = await fleet.hosts.generate(ORDER)
    assert (made.arguments, set(made.schema["properties"])) == ({"upto": 5}, {"upto", "by"})
    assert (await fleet.hosts.generate(replace(ORDER, solved=True))).arguments == {"upto": 9}
    zygote = await fleet.hosts.forked.zygote(GENERATING)
    assert zygote.pids == []
    description = await fleet.hosts.describe(GENERATING)
    assert description.generating == {"count", "raises", "misfit", "sleeps"}


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ("raises", "the generator of scenario 'raises' raised LookupError: no task for 1"),
        ("misfit", "the generator of scenario 'misfit' made no task"),
        ("bare", "declares no generator"),
    ],
)
async def test_a_generator_that_fails_is_a_fault_by_name(fleet: Fleet, scenario: str, says: str) -> None:
    with pytest.raises(EpisodeFault, match=says):
        await fleet.hosts.generate(replace(ORDER, scenario=scenario))


async def test_a_generator_that_hangs_is_ended_with_its_process(fleet: Fleet) -> None:
    with (
        fleet.hasty(start_s=1.0),
        pytest.raises(EpisodeTimeout, match=r"generate: tasks\.generate got no answer within"),
    ):
        await fleet.hosts.generate(replace(ORDER, scenario="sleeps"))
    assert (await fleet.hosts.forked.zygote(GENERATING)).pids == []
    assert (await fleet.hosts.generate(ORDER)).arguments == {"upto": 5}


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "upcycle.environment.serve", GENERATING.path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline().partition('=')[2])}"
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def test_an_environment_that_is_served_elsewhere_generates_too(served: str) -> None:
    host, source = TcpHost(TIMEOUTS), TcpEnvironment("generating", served)
    assert (await host.describe(source)).generating == {"count", "raises", "misfit", "sleeps"}
    made = await host.generate(replace(ORDER, source=source))
    assert (made.arguments, set(made.schema["properties"])) == ({"upto": 5}, {"upto", "by"})
    with pytest.raises(EpisodeFault, match="no task for 1"):
        await host.generate(replace(ORDER, source=source, scenario="raises"))


def counting(*scenarios: str) -> taskset_pb2.Taskset:
    """A training task of each scenario."""
    source = taskset_pb2.PythonSource(path=GENERATING.path)
    environment = taskset_pb2.EnvironmentSpec(name=GENERATING.name, python=source)
    tasks = [taskset_pb2.Task(slug=name, scenario=name, args_json="{}") for name in scenarios]
    return taskset_pb2.Taskset(
        name="counts", split=common_pb2.SPLIT_TRAIN, environment=environment, tasks=tasks
    )


def new_tasks_run(purpose: Any = TRAIN, **training: Any) -> taskset_pb2.RunSpec:
    chosen = {"new_tasks": "failed", "new_tasks_share": 1.0, "prompts_per_step": 1, "max_staleness": 0}
    config = taskset_pb2.TrainingConfig(**{**chosen, **training})
    return run_spec(purpose, taskset="counts", training=config)


async def test_a_run_that_cannot_have_new_tasks_is_refused_at_submit(runner: Runner) -> None:
    await register(runner, counting("count", "bare"))
    error = await refusal(submit(runner, new_tasks_run()))
    assert error.code().name == "INVALID_ARGUMENT"
    assert error.details() == (
        "spec.training.new_tasks is set, and of environment 'generating' the scenario 'bare' declares no "
        "generator: write @bare.generator in its file, or leave the option out"
    )
    for share in (0.0, 1.5):
        error = await refusal(submit(runner, new_tasks_run(new_tasks_share=share)))
        assert "spec.training.new_tasks_share must be > 0 and <= 1" in str(error.details())
    error = await refusal(submit(runner, new_tasks_run(new_tasks_difficulty="upto")))
    assert "the scenario 'bare' declares no generator" in str(error.details())
    error = await refusal(submit(runner, new_tasks_run(common_pb2.PURPOSE_EVAL)))
    assert error.details() == "spec.training is for purpose TRAIN only; this run has purpose EVAL"


async def test_an_argument_that_is_no_number_is_refused_at_submit(runner: Runner) -> None:
    await register(runner, counting("count"))
    error = await refusal(submit(runner, new_tasks_run(new_tasks_difficulty="words")))
    assert error.code().name == "INVALID_ARGUMENT"
    assert error.details() == (
        "spec.training.new_tasks_difficulty is 'words', and of environment 'generating' the scenario "
        "'count' takes no number of that name (numbers: upto, by): name an argument that says how hard a "
        "task is, or leave the option out"
    )
    assert (await submit(runner, new_tasks_run(new_tasks_difficulty="upto"))).run_id


async def test_a_run_plays_what_its_environment_makes_of_a_failed_task(runner: Runner) -> None:
    """The real service: the group is settled on the bus, a process makes the task, another one plays it."""
    prompts: dict[str, str] = {}
    excluding = Excluding(runner)

    async def play(request: EpisodeRequested) -> None:
        episode = request.episode
        opened = await runner.environments.Open(env_pb2.OpenRequest(episode_id=episode.episode_id))
        prompts[episode.task_slug] = opened.prompt[-1].content
        await runner.environments.Close(env_pb2.CloseRequest(lease_id=opened.lease_id))
        await excluding.play(request)

    await register(runner, counting("count"))
    async with sampling(runner, play):
        run_id = (await submit(runner, new_tasks_run(steps=0))).run_id
        async with asyncio.timeout(120):
            while len(prompts) < 3:
                await asyncio.sleep(0.05)
    run = (await get(runner, run_id)).run
    oldest, second = list(run.new_tasks.newest)[:-3:-1]
    assert prompts["count"] == "Count to 9 by 1."
    assert prompts[oldest.slug] == f"Count to {json.loads(oldest.args_json)['upto']} by 1."
    assert (oldest.parent_slug, second.taskset) == ("count", "counts")
    assert run.new_tasks.groups >= 2
    said = (await explain(runner, run_id)).summary
    assert "groups are on new tasks" in said
