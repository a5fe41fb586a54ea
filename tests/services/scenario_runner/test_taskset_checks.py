"""What is kept of looks at a taskset: leak scans of the running service, and attacks that callers report."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.support import arith, explain, refusal, register, run_spec, submit
from tests.support.command_line import CommandLine

from upcycle.api.common.v1.common_pb2 import SPLIT_TRAIN
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2

ENVIRONMENT = '''
import time
from upcycle import Environment

env = Environment("incidents")
now = []


@env.tool()
def logs(service: str) -> str:
    """Lines of a service; without one of a known name it says too much."""
    return "nothing" if service == "api" else f"unknown service; the cause is {now[-1]}"


@env.scenario("ask")
async def ask(expected: str, shows: str = ""):
    now.append("nobody knows" if shows != "tool" else expected)
    if shows == "hangs":
        time.sleep(600)
    answer = yield f"What broke? Not: {expected.upper()}." if shows == "prompt" else "What broke?"
    yield 1.0 if answer == expected else 0.0
'''
LEAKS = taskset_pb2.TASKSET_CHECK_KIND_LEAK_SCAN
ATTACK = taskset_pb2.TASKSET_CHECK_KIND_ATTACK


def asks(folder: Path, *rows: tuple[str, str], environment: str = ENVIRONMENT) -> taskset_pb2.Taskset:
    """Of what is expected and what shows it."""
    path = folder / "incidents.py"
    path.write_text(environment)
    tasks = [
        taskset_pb2.Task(
            slug=f"t{at}", scenario="ask", args_json=json.dumps({"expected": expected, "shows": shows})
        )
        for at, (expected, shows) in enumerate(rows)
    ]
    where = taskset_pb2.EnvironmentSpec(name="incidents", python=taskset_pb2.PythonSource(path=str(path)))
    return taskset_pb2.Taskset(name="asks", split=SPLIT_TRAIN, environment=where, tasks=tasks)


async def summary(runner: Runner, name: str) -> taskset_pb2.TasksetSummary:
    """Of the newest revision, once none of its checks is under way."""
    request = service_pb2.GetTasksetRequest(name=name, with_summaries=True)
    async with asyncio.timeout(60):
        while True:
            found: taskset_pb2.TasksetSummary = (await runner.tasksets.GetTaskset(request)).revisions[-1]
            if all(one.HasField("checked_at") for one in found.checks):
                return found
            await asyncio.sleep(0.1)


@pytest.fixture
def upcycle(runner: Runner, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys, {"tasksets": runner.address})


async def test_a_registration_without_our_client_is_searched_for_leaks(
    runner: Runner, upcycle: CommandLine, tmp_path: Path
) -> None:
    rows = ("pool exhausted", ""), ("bad deploy", "prompt"), ("certificate expired", "tool")
    await register(runner, asks(tmp_path, *rows))
    found = await summary(runner, "asks")
    (scan,) = found.checks
    assert (scan.kind, scan.num_tasks, scan.num_looked, scan.stopped) == (LEAKS, 3, 3, "")
    assert scan.checked_by == "scenario_runner"
    assert scan.source_digest == found.source_digest
    assert list(scan.findings) == [
        "t1: its prompt holds 'bad deploy', which the agent has to find",
        "t2: what tool logs says to {'service': 'x'} holds 'certificate expired', which the agent has to "
        "find",
    ]
    shown = (await upcycle("tasksets", "show", "asks")).out
    assert "leak scan: 2 findings in 3 of 3 tasks" in shown
    assert f"  {scan.findings[0]}" in shown.splitlines()
    assert (await upcycle("tasksets", "list")).out.splitlines()[1].endswith("2 leaks")
    run_id = (await submit(runner, run_spec(taskset="asks"))).run_id
    said = [one.what for one in (await explain(runner, run_id)).waiting_for if "gives away" in one.what]
    assert said == [
        "warning: taskset asks gives away in 2 places what the agent has to find: " + scan.findings[0]
    ]


async def test_a_sound_taskset_is_searched_once_for_each_source(runner: Runner, tmp_path: Path) -> None:
    sound = asks(tmp_path, ("pool exhausted", ""), ("bad deploy", ""))
    await register(runner, sound)
    (first,) = (await summary(runner, "asks")).checks
    assert (first.num_looked, first.num_findings, first.stopped) == (2, 0, "")
    await register(runner, sound)
    assert list((await summary(runner, "asks")).checks) == [first]
    leaking = ENVIRONMENT.replace('else "What broke?"', 'else f"What broke? {expected}"')
    await register(runner, asks(tmp_path, ("pool exhausted", ""), ("bad deploy", ""), environment=leaking))
    newer, older = (await summary(runner, "asks")).checks
    assert older == first
    assert newer.num_findings == 2
    assert newer.source_digest != older.source_digest


async def test_what_could_not_be_searched_is_said_and_searched_again(runner: Runner, tmp_path: Path) -> None:
    mute = asks(tmp_path, ("bad deploy", ""), environment=ENVIRONMENT.replace("expected", "wanted"))
    mute.tasks[0].args_json = json.dumps({"wanted": "bad deploy"})
    await register(runner, mute)
    (scan,) = (await summary(runner, "asks")).checks
    assert (scan.num_tasks, scan.num_findings) == (0, 0)
    assert scan.stopped.startswith("no argument of its tasks is named as one that holds the answer")
    broken = ENVIRONMENT.replace("now.append(", "raise ValueError(")
    await register(runner, asks(tmp_path, ("bad deploy", ""), environment=broken))
    (scan,) = (await summary(runner, "asks")).checks
    assert (scan.num_tasks, scan.num_looked, scan.num_findings) == (1, 0, 0)
    assert scan.stopped.startswith("task t0: ")
    await register(runner, asks(tmp_path, ("bad deploy", ""), environment=broken))
    (again,) = (await summary(runner, "asks")).checks
    assert again.checked_at.ToNanoseconds() > scan.checked_at.ToNanoseconds()


async def test_a_scan_that_a_stop_cut_off_is_made_by_the_next_planner(
    start_runner: Start, tmp_path: Path
) -> None:
    first = await start_runner()
    await register(first, asks(tmp_path, ("bad deploy", "hangs"), ("pool exhausted", "prompt")))
    await first.service.stop()
    found = await summary(await start_runner(), "asks")
    (scan,) = found.checks
    assert (scan.num_tasks, scan.num_looked, scan.num_findings) == (2, 1, 1)
    assert scan.stopped.startswith("task t0: ")


def attack(**fields: Any) -> taskset_pb2.TasksetCheck:
    given = {"kind": ATTACK, "num_tasks": 3, "num_looked": 3, "num_plays": 42, "num_findings": 1}
    return taskset_pb2.TasksetCheck(**{**given, "findings": ["t1: dump earns 1"], **fields})


async def record(runner: Runner, digest: str, check: taskset_pb2.TasksetCheck) -> Any:
    request = service_pb2.RecordTasksetCheckRequest(taskset="sums", taskset_digest=digest, check=check)
    return await runner.tasksets.RecordTasksetCheck(request)


async def test_an_attack_is_kept_with_its_model_and_its_source(runner: Runner, upcycle: CommandLine) -> None:
    first = await register(runner, arith(2))
    second = await register(runner, arith(3))
    now = (await summary(runner, "sums")).source_digest
    await record(runner, second.digest, attack(source_digest=now, model_family="qwen3"))
    await record(runner, second.digest, attack(source_digest="0" * 64, model_family="llama"))
    kept = await record(runner, second.digest, attack(source_digest=now, model_family="qwen3", num_plays=43))
    assert (kept.revision, kept.check.num_plays) == (2, 43)
    assert kept.check.checked_by
    assert (await record(runner, first.digest, attack())).revision == 1
    checks = [one for one in (await summary(runner, "sums")).checks if one.kind == ATTACK]
    assert [(one.model_family, one.num_plays) for one in checks] == [("qwen3", 43), ("llama", 42)]
    shown = (await upcycle("tasksets", "show", "sums")).out.splitlines()
    heads = [line for line in shown if line.startswith("attack")]
    assert heads[0].startswith("attack on the graders (against qwen3): 1 finding in 3 of 3 tasks, 43 plays, ")
    assert heads[1].startswith("attack on the graders (against llama), of an older source (000000000000): ")
    assert "  t1: dump earns 1" in shown
    older = (await upcycle("tasksets", "show", "sums@1")).out
    assert "attack on the graders (the same cheats for every model): 1 finding" in older


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": LEAKS}, "the planner makes its leak scans itself"),
        ({"kind": 0}, "check.kind is 0"),
        ({"model_family": "x" * 101}, "check.model_family has 101 characters"),
        ({"source_digest": "abc"}, "check.source_digest is 'abc'"),
        ({"num_looked": 4}, "looked at 4 of 3 tasks"),
        ({"num_findings": 0}, "1 of 0 findings"),
        ({"num_plays": -1}, "-1 plays"),
        ({"findings": ["x"] * 21, "num_findings": 21}, "has 21 sentences"),
        ({"findings": ["x" * 501]}, "501 characters"),
        ({"model_family": "\x1b[31mred"}, "check.model_family has '\\x1b[31mred'; use one line"),
        ({"findings": ["t1: x\nleak scan: 0 findings"]}, "check.findings has 't1: x\\nleak scan"),
        ({"stopped": "a\x00b"}, "check.stopped has 'a\\x00b'"),
    ],
)
async def test_an_attack_that_cannot_be_is_refused(runner: Runner, wrong: dict[str, Any], said: str) -> None:
    registered = await register(runner, arith(3))
    error = await refusal(record(runner, registered.digest, attack(**wrong)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in (error.details() or "")


async def test_an_attack_on_tasks_that_are_not_registered_is_refused(runner: Runner) -> None:
    for said in ("no taskset 'sums' is registered", "no revision of taskset 'sums' has the tasks"):
        error = await refusal(record(runner, "0" * 64, attack()))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert said in (error.details() or "")
        await register(runner, arith(3))


async def test_so_many_attacks_are_kept_and_their_findings_are_given_in_part(runner: Runner) -> None:
    registered = await register(runner, arith(3))
    now = (await summary(runner, "sums")).source_digest
    many = {"findings": ["\u00e9" * 500] * 20, "num_findings": 20}
    for at in range(18):
        await record(runner, registered.digest, attack(source_digest=now, model_family=f"m{at}", **many))
    for family in ("older", "old"):
        await record(runner, registered.digest, attack(source_digest="0" * 64, model_family=family))
    for at in (18, 19):
        await record(runner, registered.digest, attack(source_digest=now, model_family=f"m{at}", **many))
    families = {f"m{at}" for at in range(20)}
    assert {one.model_family for one in await attacks(runner)} == families
    await record(runner, registered.digest, attack(source_digest=now, model_family="m20", **many))
    found = await attacks(runner)
    assert {one.model_family for one in found} == (families - {"m0"}) | {"m20"}
    assert [len(one.findings) for one in found] == [20] * 10 + [0] * 10
    assert {one.num_findings for one in found} == {20}
    listed = await runner.tasksets.ListTasksets(service_pb2.ListTasksetsRequest(with_summaries=True))
    assert [list(one.findings) for one in listed.summaries[0].checks] == [[]] * 21


async def attacks(runner: Runner) -> list[taskset_pb2.TasksetCheck]:
    return [one for one in (await summary(runner, "sums")).checks if one.kind == ATTACK]
