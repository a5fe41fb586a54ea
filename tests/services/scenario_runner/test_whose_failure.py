"""Whose failure it was, with real environment processes: each row of docs/reference/failures.md that arises
in an environment. Those of the sampler: tests/services/rollout_sampler/test_policy_failures.py.
"""

import asyncio
import os
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet
from tests.services.scenario_runner.test_sandbox import fleet_with
from tests.support.waiting import until

from scenario_runner.adapters.sandbox import Limits
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeFault,
    Opened,
    PolicyFault,
    PythonEnvironment,
)
from scenario_runner.wire.environments import grade_to_wire
from upcycle.api.trajectory.v1.trajectory_pb2 import Turn

BLAME = PythonEnvironment("blame", str(ENVIRONMENTS / "blame.py"))


async def opened(fleet: Fleet, scenario: str = "parses", args: str = "{}") -> Opened:
    return await fleet.open(scenario, args, source=BLAME)


async def process_of(fleet: Fleet, environment: Opened) -> int:
    return int((await fleet.call(environment, "process")).content)


# answer_error: the scenario fails on this answer, and a fresh instance grades an empty one.


@pytest.mark.parametrize(
    ("scenario", "answer", "said"),
    [
        ("parses", "not json", "JSONDecodeError"),
        ("parses", "{}", "KeyError: 'score'"),
        ("parses", '{"score": 7}', "outside"),
        ("misbehaves", "nan", "not finite"),
        ("misbehaves", "hang", "grade: tasks.grade got no answer within 1 s"),
        ("misbehaves", "exit", "status 9"),
        ("misbehaves", "kill", "signal 9"),
    ],
)
async def test_an_answer_that_breaks_the_scenario_is_graded_0(
    fleet: Fleet, scenario: str, answer: str, said: str
) -> None:
    with fleet.hasty(grade_s=1.0) if answer == "hang" else nullcontext():
        environment = await opened(fleet, scenario)
    grade = await fleet.grade(environment, answer)
    assert (grade.reward, grade.success) == (0.0, False)
    assert grade.failure.failure_kind == "answer_error"
    assert said in str(grade.failure)
    assert await fleet.grade(environment, answer) is grade  # no second check
    assert fleet.leases.num_alive == 0
    assert await fleet.works()


async def test_rule_and_traceback_travel_with_the_grade(fleet: Fleet) -> None:
    sent = grade_to_wire(await fleet.grade(await opened(fleet), "not json"))
    assert (sent.reward, sent.success, sent.failure.kind) == (0.0, False, "answer_error")
    assert "a fresh instance of it graded an empty answer" in sent.failure.rule
    assert "blame.py" in sent.failure.detail
    assert "json.loads(answer)" in sent.failure.detail  # the line that raised


async def test_the_fresh_instance_sees_one_empty_turn(fleet: Fleet) -> None:
    environment = await opened(fleet, "counts_turns")
    grade = await fleet.grade(environment, "x", Turn(text="a"), Turn(text="b"))
    assert grade.failure.failure_kind == "answer_error"
    environment = await opened(fleet, "reads_last_turn")
    grade = await fleet.grade(environment, "x", Turn(text="no number"))
    assert grade.failure.failure_kind == "answer_error"


async def test_a_run_that_counts_failures_as_missing_gets_a_typed_failure(fleet: Fleet) -> None:
    environment = await opened(fleet)
    episode = fleet.played[environment.lease_id]
    (lease,) = fleet.leases._leases.values()
    lease.episode = replace(fleet.episodes.rows[episode], failures_are_missing=True)
    with pytest.raises(PolicyFault) as caught:
        await fleet.grade(environment, "not json")
    assert caught.value.failure_kind == "answer_error"


# environment_broken: a fresh instance fails on an empty answer too.


async def test_a_scenario_that_raises_whatever_is_answered_is_broken(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentBroken, match="fails on an empty answer too") as caught:
        await fleet.grade(await opened(fleet, "needs_json"), "not json")
    assert caught.value.failure_kind == "environment_broken"
    assert (await fleet.grade(await opened(fleet, "needs_json"), "1")).reward == 1.0


# external_failure


@pytest.mark.parametrize("what", ["refused", "declared", "infrastructure", "group"])
async def test_an_outage_in_a_tool_ends_the_episode_as_missing(fleet: Fleet, what: str) -> None:
    with pytest.raises(EpisodeFault) as caught:
        await fleet.call(await opened(fleet), "asks", f'{{"what": "{what}"}}')
    assert caught.value.failure_kind == "external_failure"


@pytest.mark.parametrize("what", ["file", "slow", "mixed"])
async def test_any_other_exception_of_a_tool_is_for_the_policy_to_read(fleet: Fleet, what: str) -> None:
    outcome = await fleet.call(await opened(fleet), "asks", f'{{"what": "{what}"}}')
    assert outcome.is_error


async def test_an_outage_while_grading_is_missing_and_not_the_answers_fault(fleet: Fleet) -> None:
    with pytest.raises(EpisodeFault, match="no master") as caught:
        await fleet.grade(await opened(fleet, "misbehaves"), "database")
    assert caught.value.failure_kind == "external_failure"


async def test_an_outage_during_the_check_blames_neither(fleet: Fleet, tmp_path: Path) -> None:
    flag = f'{{"flag": "{tmp_path / "away"}"}}'
    with pytest.raises(EpisodeFault, match="no master") as caught:
        await fleet.grade(await opened(fleet, "breaks_in_between", flag), "x")
    assert caught.value.failure_kind == "external_failure"


# tool_timeout and process_ended: a call of the policy ended it.


@pytest.mark.parametrize(
    ("tool", "kind", "said"),
    [
        ("exits", "process_ended", "status 7"),
        ("killed", "process_ended", "signal 9"),
        ("blocks", "tool_timeout", "tool blocks"),
    ],
)
async def test_a_call_that_ends_its_environment_is_the_policys(
    fleet: Fleet, tool: str, kind: str, said: str
) -> None:
    with fleet.hasty(tool_s=0.5) if tool == "blocks" else nullcontext():
        environment = await opened(fleet)
    with pytest.raises(PolicyFault, match=said) as caught:
        await fleet.call(environment, tool)
    assert caught.value.failure_kind == kind
    assert await fleet.works()


@pytest.mark.parametrize(
    ("limits", "tool", "args", "kind", "said"),
    [
        (Limits(cpu_s=1), "spins", "{}", "tool_timeout", "processor time"),
        (Limits(address_space_bytes=1 << 30), "fills", '{"megabytes": 1024}', "process_ended", "signal 11"),
    ],
)
async def test_a_call_that_meets_a_limit_of_its_sandbox_is_the_policys(
    limits: Limits, tool: str, args: str, kind: str, said: str
) -> None:
    async with fleet_with(limits) as fleet:
        environment = await opened(fleet)
        with pytest.raises(PolicyFault, match=said) as caught:
            await fleet.call(environment, tool, args)
        assert caught.value.failure_kind == kind
        assert await fleet.works()


@pytest.mark.parametrize(("tool", "args"), [("blocks", "{}"), ("naps", '{"seconds": 29}')])
async def test_a_call_beyond_its_callers_limit_is_the_policys(fleet: Fleet, tool: str, args: str) -> None:
    environment = await opened(fleet)
    with pytest.raises(PolicyFault, match=f"tool {tool} took longer than the 0.5 s") as caught:
        await fleet.call(environment, tool, args, limit_s=0.5)
    assert caught.value.failure_kind == "tool_timeout"
    assert fleet.leases.num_alive == 0
    assert await fleet.works()


async def test_a_repeated_call_does_not_start_again_with_another_limit(fleet: Fleet) -> None:
    environment = await opened(fleet)
    first = asyncio.ensure_future(fleet.call(environment, "naps", '{"seconds": 1}', "one", limit_s=29.0))
    await asyncio.sleep(0)
    repeated = await fleet.call(environment, "naps", '{"seconds": 1}', "one", limit_s=0.01)
    assert repeated is await first
    assert repeated.content == "rested"


async def test_the_time_in_which_the_runner_was_frozen_is_not_the_calls(fleet: Fleet) -> None:
    environment = await opened(fleet)
    call = asyncio.ensure_future(fleet.call(environment, "naps", '{"seconds": 2}', limit_s=5.0))
    await asyncio.sleep(1)
    time.sleep(6)  # noqa: ASYNC251 - nothing in this process goes on meanwhile, as after SIGSTOP
    assert (await call).content == "rested"


async def test_a_process_that_a_call_ends_later_is_the_policys(fleet: Fleet) -> None:
    environment = await opened(fleet)
    pid = await process_of(fleet, environment)
    await fleet.call(environment, "exits_later")
    await _gone(fleet, pid)
    grade = await fleet.grade(environment, '{"score": 1}')
    assert (grade.reward, grade.failure.failure_kind) == (0.0, "process_ended")


async def test_a_process_that_is_killed_after_a_call_is_the_policys(fleet: Fleet) -> None:
    environment = await opened(fleet)
    pid = await process_of(fleet, environment)
    os.kill(pid, signal.SIGKILL)  # as what the call left behind, or the kernel for its memory
    await _gone(fleet, pid)
    grade = await fleet.grade(environment, '{"score": 1}')
    assert (grade.reward, grade.failure.failure_kind) == (0.0, "process_ended")
    environment = await opened(fleet)
    pid = await process_of(fleet, environment)
    os.kill(pid, signal.SIGKILL)
    await _gone(fleet, pid)
    with pytest.raises(PolicyFault, match="signal 9"):
        await fleet.call(environment, "process")


# environment_lost: it died before any call of the policy, or with its zygote.


async def test_a_process_that_is_killed_before_any_call_is_lost(fleet: Fleet) -> None:
    for is_graded in (False, True):
        environment = await opened(fleet)
        (pid,) = (await fleet.hosts.forked.zygote(BLAME)).pids
        os.kill(pid, signal.SIGKILL)
        await _gone(fleet, pid)
        with pytest.raises(EnvironmentLost) as caught:
            await (fleet.grade(environment, "not json") if is_graded else fleet.call(environment, "process"))
        assert caught.value.failure_kind == "environment_lost"


async def test_a_call_whose_zygote_dies_is_lost(fleet: Fleet) -> None:
    environment = await opened(fleet)
    await process_of(fleet, environment)
    call = asyncio.ensure_future(fleet.call(environment, "blocks"))
    await asyncio.sleep(0)
    (await fleet.hosts.forked.zygote(BLAME)).kill()
    with pytest.raises(EnvironmentLost, match="zygote"):
        await call


async def _gone(fleet: Fleet, pid: int) -> None:
    """Until the process is reaped, and the runner was told."""
    zygote = await fleet.hosts.forked.zygote(BLAME)
    await until(lambda: pid not in zygote.pids)
