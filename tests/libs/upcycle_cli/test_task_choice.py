"""Which tasks `upcycle eval` plays, and the runs that it follows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving, training

from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.task_choice import TaskChoice, UnclearChoice
from upcycle.errors import UnknownName
from upcycle.tasks import EnvironmentRef, Task, Taskset

ENVIRONMENT = EnvironmentRef("sums", path="/sums.py")
WHOLE = Taskset(
    "sums",
    [
        Task(ENVIRONMENT, "add", f'{{"left": {at}}}', slug=f"t{at}", family="small" if at < 2 else "large")
        for at in range(4)
    ],
    "held_out",
)
FILE = """
from upcycle import Environment, Taskset

env = Environment("sums")


@env.scenario("add")
async def add(left: int):
    answer = yield f"{left} + 1"
    yield 1.0 if answer == str(left + 1) else 0.0


tasks = Taskset("sums", [add.task(left=at, slug=f"t{at}") for at in range(4)])
"""


def slugs(choice: TaskChoice) -> list[str]:
    return [task.slug for task in choice.of(WHOLE)]


def test_every_task_is_played_unless_some_are_chosen() -> None:
    assert TaskChoice().of(WHOLE) is WHOLE
    assert TaskChoice(full=True).of(WHOLE) is WHOLE
    assert TaskChoice(limit=4).of(WHOLE) is WHOLE


def test_choices_narrow_one_another_and_keep_the_order() -> None:
    assert slugs(TaskChoice(first=True)) == ["t0"]
    assert slugs(TaskChoice(limit=3)) == ["t0", "t1", "t2"]
    assert slugs(TaskChoice(task_ids=("t3,t1", "t0"))) == ["t0", "t1", "t3"]
    assert slugs(TaskChoice(filter_=("family=large",))) == ["t2", "t3"]
    assert slugs(TaskChoice(filter_=("slug=t*", "left=3"))) == ["t3"]
    assert slugs(TaskChoice(filter_=("family=large",), limit=1)) == ["t2"]


def test_a_part_has_a_name_of_its_content_and_the_side_of_the_whole() -> None:
    part, same, other = (TaskChoice(limit=count).of(WHOLE) for count in (2, 2, 3))
    assert part.name == same.name != other.name
    assert part.name.startswith("sums-part-")
    assert part.split == "held_out"


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(UnknownName, match="no task 't9'"):
        TaskChoice(task_ids=("t9",)).of(WHOLE)
    with pytest.raises(UnclearChoice, match=r"no task of 'sums' is left .*its families are large, small"):
        TaskChoice(filter_=("family=huge",)).of(WHOLE)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--full --first", "--full plays every task, and --first was given too"),
        ("--full --limit 3", "--full plays every task"),
        ("--first --limit 3", "--first is --limit 1"),
        ("--limit 0", "--limit is 0; give at least 1"),
        ("--filter large", "--filter 'large' is not FIELD=PATTERN"),
        ("--limit 2 --trainable --group 2", "--trainable offers the groups of a whole taskset"),
        ("--attach last", "a submitted run keeps what it has: TASKS was given too"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "sums", "m", *flags.split()]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_dry_run_counts_the_chosen_tasks(tasks_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", tasks_file, "m", "--dry-run", "--filter", "left=2"]) == Exit.OK
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "1 of the 4 tasks of sums"
    assert said[1].startswith("sums-part-")
    assert "1 task, split train" in said[1]


@pytest.fixture
def tasks_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of four tasks, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("tasks.py").write_text(FILE)
    return "tasks.py"


@pytest.fixture
async def planner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Planner]:
    """A planner that the command line finds, with an evaluation that is over."""
    said = Planner()  # type: ignore[abstract]
    done = evaluation("run-e")
    said.answer, said.watched, said.runs = done, [done], [training("run-t")]
    async with serving(said) as addresses:
        for peer, address in addresses.peers.items():
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
        yield said


async def test_the_names_of_other_tools_mean_the_same(planner: Planner, tasks_file: str) -> None:
    arguments = ["eval", tasks_file, "m", "--full", "--remote", "--group-size", "3", "--max-steps", "5"]
    assert await asyncio.to_thread(run, [*arguments, "--detach"]) == Exit.OK
    spec = planner.submitted[0].spec
    assert (spec.group_size, spec.sampling.max_turns, spec.taskset) == (3, 5, "sums@3")


async def test_only_the_part_is_registered_and_played(planner: Planner, tasks_file: str) -> None:
    assert await asyncio.to_thread(run, ["eval", tasks_file, "m", "--limit", "2", "--detach"]) == Exit.OK
    assert [name.rpartition("-")[0] for name in planner.registered] == ["sums-part"]
    assert planner.submitted[0].spec.taskset == f"{planner.registered[0]}@3"


async def test_a_run_that_was_submitted_is_followed_to_its_report(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(run, ["eval", "--attach", "run-e"]) == Exit.OK
    assert "run-e: success 100.0%" in capsys.readouterr().out
    assert planner.submitted == []
    assert await asyncio.to_thread(run, ["eval", "--attach", "run-t"]) == Exit.USAGE
    assert "run-t trains" in capsys.readouterr().err


def test_a_dry_run_refuses_a_taskset_that_the_run_would_not_find(
    tasks_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", tasks_file, "m", "--dry-run", "--taskset", "trian"]) == Exit.USAGE
    assert "has no taskset 'trian'; it has " in capsys.readouterr().err
