"""What tasks give away, found when they are registered: each looked at in a process of its own."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle_cli.planner import Planner, serving

from upcycle.api.taskset.v1.service_pb2 import RegisterTasksetResponse
from upcycle.cli.tasksets import load_source
from upcycle.leak_scan import LeakScan, ScanLimits, TaskLeak, leak_lines, scan_of
from upcycle.platform import Platform
from upcycle.run_client import RegisteredTaskset
from upcycle.task_rows import EnvironmentRef
from upcycle.tasks import Taskset

ENVIRONMENT = '''
import os
import time
from pathlib import Path
from upcycle import Environment

env = Environment("incidents")
CAUSES = ("pool exhausted", "bad deploy", "certificate expired")
now = []


@env.tool()
def logs(service: str) -> str:
    """Lines of a service; without one of a known name it says too much."""
    return "nothing" if service == "api" else f"unknown service; the cause is {now[-1]}"


@env.tool()
def candidates() -> str:
    return ", ".join(CAUSES)


@env.tool()
def fails() -> str:
    raise ValueError(now[-1])


@env.scenario("ask")
async def ask(expected: str, shows: str = ""):
    Path("looked-at").open("a").write(f"{os.getpid()}\\n")
    now.append("nobody knows" if shows != "tool" else expected)
    if shows == "hangs":
        time.sleep(600)
    prompt = f"What broke? Not: {expected.upper()}." if shows == "prompt" else "What broke?"
    if shows == "list":
        prompt += " One of: " + ", ".join(CAUSES)
    answer = yield prompt
    yield 1.0 if answer == expected else 0.0
'''
Rows = list[tuple[str, str]]


@pytest.fixture
def taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Rows], Taskset]:
    """Of what is expected and what shows it; the environment notes beside it which process played."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.py").write_text(ENVIRONMENT)

    def made(rows: Rows) -> Taskset:
        tasks = [
            f'ask.task(slug="t{at}", expected="{expected}", shows="{shows}")'
            for at, (expected, shows) in enumerate(rows)
        ]
        head = "from env import ask\nfrom upcycle import Taskset\n"
        path = tmp_path / ("tasks.py" if len(rows) > 7 else f"tasks{len(list(tmp_path.glob('*.py')))}.py")
        path.write_text(f'{head}TASKS = Taskset("asks", [{", ".join(tasks)}], "unassigned")\n')
        return Taskset.from_file(path)

    return made


def looked_at() -> list[str]:
    """The processes that played."""
    return Path("looked-at").read_text().split()


async def test_a_leak_is_named_with_its_task_and_its_place(taskset: Callable[[Rows], Taskset]) -> None:
    found = await scan_of(
        taskset(
            [
                ("pool exhausted", ""),
                ("bad deploy", "prompt"),
                ("certificate expired", "tool"),
                ("bad deploy", "list"),
            ]
        ),
        ScanLimits(total_s=60, call_s=30),
    )
    assert (found.num_looked, found.num_chosen, found.why) == (4, 4, "")
    assert found.leaks == (
        TaskLeak("t1", "its prompt", "bad deploy"),
        TaskLeak("t2", "what tool logs says to {'service': 'x'}", "certificate expired"),
        TaskLeak("t2", "what tool fails says to {}", "certificate expired"),
    )
    assert str(found.leaks[0]) == "t1: its prompt holds 'bad deploy', which the agent has to find"
    assert str(os.getpid()) not in looked_at()


async def test_a_sound_taskset_and_one_that_names_no_secret_are_silent(
    taskset: Callable[[Rows], Taskset],
) -> None:
    sound = taskset([("pool exhausted", ""), ("bad deploy", "")])
    assert await scan_of(sound, ScanLimits(total_s=60, call_s=30)) == LeakScan(num_looked=2, num_chosen=2)
    assert len(looked_at()) == 2
    assert await scan_of(taskset([("", "prompt"), ("ab", "prompt")])) == LeakScan()
    assert len(looked_at()) == 2, "nothing is played where no argument is to be found"


async def test_some_of_many_are_looked_at_evenly_apart(taskset: Callable[[Rows], Taskset]) -> None:
    many = taskset([(f"cause number {at}", "prompt") for at in range(9)])
    found = await scan_of(many, ScanLimits(max_tasks=3, total_s=60, call_s=30))
    assert [leak.task for leak in found.leaks] == ["t0", "t3", "t6"]


def registered(name: str) -> RegisteredTaskset:
    """As the planner answers for new tasks."""
    return RegisteredTaskset(name, revision=1, num_tasks=2, is_new=True)


async def test_a_task_that_hangs_is_left_out_and_named(taskset: Callable[[Rows], Taskset]) -> None:
    asks = taskset([("bad deploy", "prompt"), ("pool exhausted", "hangs"), ("certificate expired", "prompt")])
    found = await scan_of(asks, ScanLimits(total_s=60, call_s=3.0))
    assert [leak.task for leak in found.leaks] == ["t0", "t2"]
    assert (found.num_looked, found.num_chosen) == (2, 3)
    assert found.why.startswith("task t1: ")
    late = await scan_of(asks, ScanLimits(total_s=0.01))
    assert (late.num_looked, late.why) == (0, "0.01 s were over")


async def test_what_cannot_be_played_here_is_said_to_be_unsearched(
    taskset: Callable[[Rows], Taskset],
) -> None:
    asks = taskset([("bad deploy", "prompt"), ("pool exhausted", "prompt")])

    def elsewhere(**where: str) -> Taskset:
        reference = EnvironmentRef("incidents", **where)
        return Taskset("asks", [replace(task, environment=reference) for task in asks.tasks], "unassigned")

    (line,) = await leak_lines(registered("asks"), elsewhere(url="tcp://127.0.0.1:9"))
    assert line == (
        "asks: 0 of 2 tasks searched for what the agent has to find: its environment is served at "
        "tcp://127.0.0.1:9; `upcycle check` looks longer"
    )
    (line,) = await leak_lines(registered("asks"), elsewhere(path="gone.py"))
    assert line.startswith("asks: 0 of 2 tasks searched for what the agent has to find: it cannot be played")


class New(Planner):
    """Has not known the tasks before."""

    created = True

    async def RegisterTaskset(self, request: Any, context: Any) -> RegisterTasksetResponse:
        return RegisterTasksetResponse(name=request.taskset.name, revision=1, created=self.created)


async def test_the_command_and_python_warn_when_new_tasks_are_registered(
    taskset: Callable[[Rows], Taskset], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from upcycle.train.running import _taskset

    asks, said = taskset([(f"cause number {at}", "prompt") for at in range(8)]), New()  # type: ignore[abstract]
    warning = "asks: t0: its prompt holds 'cause number 0', which the agent has to find"
    async with serving(said) as addresses, Platform(addresses) as platform:
        await load_source("tasks.py").register(platform)
        lines = capsys.readouterr().err.splitlines()
        assert (lines[0], len(lines)) == (warning, 6)
        assert lines[-1] == "asks: 3 more such places; `upcycle check` names all"
        with caplog.at_level(logging.WARNING):
            await _taskset(platform, "run-a", asks, follows=False)
        assert warning in caplog.messages
        said.created = False
        await load_source("tasks.py").register(platform)
        assert capsys.readouterr().err == "", "they were looked at when they were new"
