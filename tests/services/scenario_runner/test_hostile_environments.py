"""Environments that misbehave, as real forked processes: each fault is typed, and everything else goes on."""

import asyncio
import gc
import json
import os
import re
import weakref
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.services.scenario_runner.fleets import ARITH, HOSTILE, TIMEOUTS, Fleet
from tests.support.waiting import until

from grpc_edge.limits import MAX_STATUS_MESSAGE_CHARS
from scenario_runner.adapters.stored_transcripts import MAX_STORED_BYTES
from scenario_runner.domain.environments import (
    BodyUnreadable,
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeError,
    EpisodeTimeout,
    EpisodeToPlay,
    FleetFull,
    PolicyFault,
    PythonEnvironment,
    UnknownLease,
)
from scenario_runner.ports import LiveEnvironment
from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall, Turn


async def test_a_well_behaved_episode(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 2, "b": 3}', source=ARITH)
    assert [message["role"] for message in opened.prompt] == ["system", "user"]
    assert [tool.name for tool in opened.tools] == ["add", "process"]
    outcome = await fleet.call(opened, "add", '{"a": 2, "b": 3}')
    assert (outcome.content, outcome.is_error) == ('{"sum": 5}', False)
    call = ToolCall(call_id="c1", name="add", arguments_json="{}")
    grade = await fleet.grade(opened, "5", Turn(tool_calls=[call]))
    assert (grade.reward, grade.success, grade.info) == (1.0, True, {"calls": 1})
    assert grade.subscores[0]["info"] == {"uses": 1}


async def test_episodes_share_nothing(fleet: Fleet) -> None:
    one = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH)
    two = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH)
    await fleet.call(one, "add", '{"a": 1, "b": 1}')
    facts = [json.loads((await fleet.call(each, "process")).content) for each in (one, two)]
    assert [fact["calls"] for fact in facts] == [1, 0]
    assert all(fact["session"] == fact["pid"] != os.getpid() for fact in facts)
    assert facts[0]["cwd"] != facts[1]["cwd"]
    assert facts[0]["cwd"] == facts[0]["env"]["TMPDIR"]


async def test_the_platforms_variables_do_not_reach_environments(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_S3_SECRET_KEY", "hidden-from-environments")
    opened = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH)
    assert "hidden-from-environments" not in (await fleet.call(opened, "process")).content


@pytest.mark.parametrize(
    ("scenario", "args", "fault", "text"),
    [
        ("raises_first", "{}", "environment_broken", "no database today"),
        ("never_yields", "{}", "environment_broken", "ended before its first yield"),
        ("cancels_first", "{}", "environment_broken", "raised CancelledError, though nothing cancelled it"),
        ("no_prompt", "{}", "environment_broken", "not a prompt"),
        ("exits", "{}", "environment_broken", r"called sys\.exit\(3\)"),
        ("eats_memory", "{}", "environment_broken", "MemoryError"),
        ("nothing_of_that_name", "{}", "unknown_name", "no scenario"),
        ("hangs_first", '{"seconds": "long"}', "arguments_invalid", "expected a number"),
    ],
)
async def test_a_scenario_that_fails_before_its_prompt(
    fleet: Fleet, scenario: str, args: str, fault: str, text: str
) -> None:
    with pytest.raises(EpisodeError, match=text) as caught:
        await fleet.open(scenario, args)
    assert caught.value.failure_kind == fault
    assert fleet.leases.num_alive == 0
    assert await fleet.works()


async def test_arguments_that_are_no_json_and_a_tool_that_raises_cancellederror_are_results(
    fleet: Fleet,
) -> None:
    opened = await fleet.open("fine")
    for deep in ("[" * 100_000, '{"a": ' * 5_000):
        outcome = await fleet.call(opened, "sleepy", deep)
        assert outcome.is_error
        assert "arguments are not JSON" in outcome.content
    outcome = await fleet.call(opened, "cancels")
    assert outcome.is_error
    assert "CancelledError" in outcome.content
    assert (await fleet.grade(opened)).reward == 1.0


async def test_a_failure_names_file_line_and_what_was_printed(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentBroken) as caught:
        await fleet.open("prints_and_raises")
    said = str(caught.value)
    assert re.search(r'hostile\.py", line \d+, in deeper\n +return row\["missing"\]', said)
    assert "KeyError: 'missing'" in said
    assert said.endswith("it printed:\nlooking for the row")


async def test_a_failure_with_much_to_say_fits_a_status(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentBroken) as caught:
        await fleet.open("prints_much_and_raises")
    said = str(caught.value)
    assert len(said) <= MAX_STATUS_MESSAGE_CHARS
    assert said.endswith("the last line")
    assert "ValueError" in said


async def test_a_scenario_that_fails_once_before_its_prompt_is_played(fleet: Fleet, tmp_path: Path) -> None:
    opened = await fleet.open("fails_once", json.dumps({"mark": str(tmp_path / "mark")}))
    assert (await fleet.grade(opened)).reward == 1.0


@pytest.mark.parametrize("scenario", ["hangs_first", "spins_first"])
async def test_a_scenario_that_hangs_before_its_prompt(fleet: Fleet, scenario: str) -> None:
    with pytest.raises(EpisodeTimeout, match=r"within 1 s"), fleet.hasty(start_s=1.0):
        async with asyncio.timeout(60):
            await fleet.open(scenario, '{"seconds": 600}' if scenario == "hangs_first" else "{}")
    assert await fleet.works()


async def test_a_scenario_whose_process_is_killed(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentLost, match="signal 9"):
        await fleet.open("killed")
    assert await fleet.works()


@pytest.mark.parametrize(
    ("scenario", "args", "text"),
    [
        ("one_yield", "{}", "ended before its second yield"),
        ("raises_last", "{}", "no such row"),
        ("sends_a_set", "{}", "the answer is no JSON: Object of type set"),
        ("thrice", "{}", "third time"),
        ("rewards", '{"value": "nan"}', "not finite"),
        ("rewards", '{"value": "inf"}', "not finite"),
        ("rewards", '{"value": "two"}', "outside"),
        ("rewards", '{"value": "minus"}', "outside"),
        ("rewards", '{"value": "text"}', "not a number"),
        ("rewards", '{"value": "none"}', "not a number"),
    ],
)
async def test_a_scenario_that_never_has_a_usable_reward_is_broken(
    fleet: Fleet, scenario: str, args: str, text: str
) -> None:
    opened = await fleet.open(scenario, args)
    for _ in range(2):  # asking again gives the same answer: the scenario is not played again
        with pytest.raises(EnvironmentBroken, match=text) as caught:
            await fleet.grade(opened)
        assert caught.value.failure_kind == "environment_broken"
    assert fleet.leases.num_alive == 0
    assert await fleet.works()


async def test_a_scenario_that_hangs_at_its_reward(fleet: Fleet) -> None:
    with fleet.hasty(grade_s=1.0):
        opened = await fleet.open("hangs_last", '{"seconds": 600}')
    with pytest.raises(EnvironmentBroken, match="grade"):
        await fleet.grade(opened)
    assert await fleet.works()


async def test_tools_that_fail_leave_the_episode_alive(fleet: Fleet) -> None:
    opened = await fleet.open()
    raised = await fleet.call(opened, "raises")
    assert (raised.is_error, raised.content) == (True, "raises: RuntimeError: the index is gone")
    assert (await fleet.call(opened, "no_such_tool")).is_error
    assert (await fleet.call(opened, "not_json")).is_error
    assert (await fleet.call(opened, "sleepy", '{"seconds": "x"}')).is_error
    assert (await fleet.call(opened, "sleepy", "not json")).is_error
    assert (await fleet.call(opened, "sleepy", "[1]")).is_error
    assert (await fleet.grade(opened)).reward == 1.0
    with fleet.hasty(tool_s=0.5):
        opened = await fleet.open()
    slow = await fleet.call(opened, "sleepy", '{"seconds": 600}')
    assert slow.is_error
    assert "no result within 0.5 s" in slow.content
    assert (await fleet.grade(opened)).reward == 1.0


async def test_a_tool_result_of_50_mb_is_cut(fleet: Fleet) -> None:
    opened = await fleet.open()
    result = await fleet.call(opened, "huge")
    assert result.truncated
    assert not result.is_error
    assert len(result.content.encode()) <= TIMEOUTS.tool_result_bytes
    assert result.content.endswith("[truncated: 52428800 bytes, limit 4096; ask for less]")
    assert (await fleet.grade(opened)).reward == 1.0


async def test_a_tool_that_blocks_the_process_ends_the_episode(fleet: Fleet) -> None:
    with fleet.hasty(tool_s=0.5):
        opened = await fleet.open()
    with pytest.raises(PolicyFault, match="tool stuck"):
        await fleet.call(opened, "stuck", '{"seconds": 600}')
    with pytest.raises(UnknownLease):
        await fleet.grade(opened)
    assert fleet.leases.num_alive == 0


async def test_a_tool_that_ends_the_process_is_the_policys_fault(fleet: Fleet) -> None:
    opened = await fleet.open()
    with pytest.raises(PolicyFault, match="status 7"):
        await fleet.call(opened, "dies")
    assert await fleet.works()


async def test_a_scenario_that_forks_leaves_no_process_behind(fleet: Fleet, tmp_path: Path) -> None:
    noted = tmp_path / "pids"
    opened = await fleet.open("forks", f'{{"pid_file": "{noted}"}}')
    await until(lambda: noted.exists() and len(noted.read_text().split()) == 3)
    pids = [int(word) for word in noted.read_text().split()]
    assert all(map(_is_alive, pids))
    assert (await fleet.grade(opened)).reward == 1.0
    await until(lambda: not any(map(_is_alive, pids)))
    assert await fleet.works()


async def test_forbidden_system_calls_are_refused(fleet: Fleet) -> None:
    opened = await fleet.open("unshares")
    assert opened.prompt[0]["content"] == "refused=True"


async def test_an_environment_that_cannot_be_imported_is_named(fleet: Fleet, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    with pytest.raises(EnvironmentBroken, match="no_such_module"):
        await fleet.open(source=PythonEnvironment("broken", str(broken)))
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nos._exit(3)\n")
    with pytest.raises(EnvironmentBroken, match="died while importing"):
        await fleet.open(source=PythonEnvironment("dying", str(dying)))
    with pytest.raises(EnvironmentBroken, match="declares no environment 'another'"):
        await fleet.open(source=PythonEnvironment("another", HOSTILE.path))
    assert await fleet.works()


async def test_a_full_fleet_says_so_and_recovers(fleet: Fleet) -> None:
    held = await asyncio.gather(*(fleet.open() for _ in range(8)))
    with pytest.raises(FleetFull, match="limit 8"):
        await fleet.open()
    await fleet.leases.close(held[0].lease_id)
    assert await fleet.works()


async def test_a_lapsed_lease_ends_its_environment(fleet: Fleet) -> None:
    opened = await fleet.open()
    assert await fleet.leases.expire() == 0
    fleet.clock.now += timedelta(seconds=61)
    with pytest.raises(UnknownLease):
        await fleet.call(opened, "raises")
    assert await fleet.leases.expire() == 1
    assert fleet.leases.num_alive == 0


async def test_the_grader_has_a_minute_for_an_answer_in_an_episodes_last_second(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH, deadline_s=14_400)
    fleet.clock.now += timedelta(seconds=14_459)
    assert await fleet.leases.expire() == 0
    assert (await fleet.grade(opened, "2")).reward == 1.0


async def test_a_lease_keeps_its_grade_and_nothing_of_its_environment(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases last for minutes after their grade: a fleet has thousands of them."""
    started: list[weakref.ref[object]] = []

    async def start(episode: EpisodeToPlay) -> LiveEnvironment:
        environment = await fleet.hosts.forked.start(episode)
        started.append(weakref.ref(environment))
        return environment

    monkeypatch.setattr(fleet.hosts, "start", start)
    opened = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH)
    await fleet.call(opened, "add", '{"a": 1, "b": 1}')
    grade = await fleet.grade(opened, "2")
    gc.collect()
    assert [kept() for kept in started] == [None]
    assert await fleet.grade(opened, "2") == grade
    with pytest.raises(UnknownLease, match="has ended"):
        await fleet.call(opened, "add", '{"a": 1, "b": 1}')


async def test_an_environment_that_its_lease_ends_during_the_grade_is_lost_and_not_the_policys_fault(
    fleet: Fleet,
) -> None:
    opened = await fleet.open("hangs_last", '{"seconds": 600}')
    grading = asyncio.ensure_future(fleet.grade(opened))
    await until(lambda: fleet.leases._leases[opened.lease_id].grading is not None, "the grade to begin")
    fleet.clock.now += timedelta(seconds=61)
    assert await fleet.leases.expire() == 1
    with pytest.raises(EnvironmentLost, match="lease of the environment ended"):
        await grading
    assert fleet.leases.num_alive == 0


async def test_an_environment_that_its_lease_ends_during_a_call_is_lost(fleet: Fleet) -> None:
    opened = await fleet.open()
    calling = asyncio.ensure_future(fleet.call(opened, "sleepy", '{"seconds": 600}'))
    await until(lambda: fleet.leases._leases[opened.lease_id].calls, "the call to begin")
    fleet.clock.now += timedelta(seconds=61)
    assert await fleet.leases.expire() == 1
    with pytest.raises(EnvironmentLost, match="lease of the environment ended"):
        await calling


async def test_a_grade_that_begins_late_has_a_whole_lease(fleet: Fleet) -> None:
    opened = await fleet.open("hangs_last", '{"seconds": 1}')
    fleet.clock.now += timedelta(seconds=59)
    grading = asyncio.ensure_future(fleet.grade(opened))
    await until(lambda: fleet.leases._leases[opened.lease_id].grading is not None, "the grade to begin")
    fleet.clock.now += timedelta(seconds=59)
    assert await fleet.leases.expire() == 0
    assert (await grading).failure is None


async def test_a_repeated_call_has_no_second_effect(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 1, "b": 1}', source=ARITH)
    outcomes = await asyncio.gather(
        *(fleet.call(opened, "add", '{"a": 1, "b": 1}', call_id="same") for _ in range(3))
    )
    assert len({outcome.content for outcome in outcomes}) == 1
    grade = await fleet.grade(opened, "2")
    assert grade.info == {"calls": 1}
    assert await fleet.grade(opened, "another answer") == grade
    await fleet.leases.close(opened.lease_id)
    await fleet.leases.close(opened.lease_id)
    with pytest.raises(UnknownLease):
        await fleet.grade(opened, "2")


async def test_an_episode_opened_again_keeps_its_older_lease_until_a_third(fleet: Fleet) -> None:
    one, two = [await fleet.open(episode="same") for _ in range(2)]
    assert (await fleet.grade(one)).reward == 1.0
    three = await fleet.open(episode="same")
    with pytest.raises(UnknownLease):
        await fleet.grade(one)
    assert [(await fleet.grade(each)).reward for each in (two, three)] == [1.0, 1.0]


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before, or while, it was read
        return False


async def test_a_trajectory_that_cannot_be_read_is_typed_and_the_lease_still_grades(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 1, "b": 2}', source=ARITH)
    good = await fleet.stored(opened, "3")
    foreign = await fleet.stored(opened, "3", episode="another-episode")
    bad = {
        "not in the store": replace(good, key="bodies/nothing-here"),
        "expected": replace(good, sha256="0" * 64),
        "limit 33554432": replace(good, size_bytes=MAX_STORED_BYTES + 1),
        "are not a trajectory body": await fleet.store.put("bodies/noise", b"no zstd frame"),
        "is of episode 'another-episode'": foreign,
    }
    for text, ref in bad.items():
        with pytest.raises(BodyUnreadable, match=text) as caught:
            await fleet.leases.grade(opened.lease_id, ref)
        assert caught.value.failure_kind == "body_corrupt"
    assert (await fleet.leases.grade(opened.lease_id, good)).reward == 1.0


async def test_two_graders_at_once_get_the_same_first_grade(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 1, "b": 2}', source=ARITH)
    right = await fleet.stored(opened, "3")
    grades = await asyncio.gather(*(fleet.leases.grade(opened.lease_id, right) for _ in range(5)))
    assert [grade.reward for grade in grades] == [1.0] * 5
    assert all(grade is grades[0] for grade in grades)
