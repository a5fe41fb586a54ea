"""`upcycle sync tasks` against the running service: what it says, asks and changes."""

import io
import json
import shutil
from pathlib import Path

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import arith, register
from tests.support.command_line import CommandLine

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2


@pytest.fixture
def upcycle(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    return CommandLine(capsys, {"tasksets": runner.address})


def write(
    path: str,
    numbers: range,
    *,
    name: str = "sums",
    split: str = "train",
    environment: str = "arith.py",
    slug: str = "t",
) -> None:
    """A tasks file: 1 + n for each number."""
    header = {
        "name": name,
        "split": split,
        "environment": {"name": "arith", "path": str(ENVIRONMENTS / environment)},
    }
    rows = [{"slug": f"{slug}{n}", "scenario": "sum", "args": {"a": 1, "b": n}} for n in numbers]
    Path(path).write_text(json.dumps({**header, "tasks": rows}))


async def stored(runner: Runner, name: str = "sums") -> taskset_pb2.Taskset:
    """What the platform has."""
    request = service_pb2.GetTasksetRequest(name=name)
    answer: service_pb2.GetTasksetResponse = await runner.tasksets.GetTaskset(request)
    return answer.taskset


async def test_a_file_is_registered_once_and_then_only_what_changed(
    runner: Runner, upcycle: CommandLine
) -> None:
    write("tasks.json", range(3))
    planned = await upcycle("sync", "tasks", "tasks.json", "mine", "--dry-run")
    assert planned.out == "mine is new: 3 tasks, train\n"
    assert "no taskset is registered" in (await upcycle("tasksets", "list")).err
    first = await upcycle("sync", "tasks", "mine")
    assert first.out == "mine is new: 3 tasks, train\nregistered as mine@1\n", first.err
    again = await upcycle("sync", "tasks", "mine")
    assert (again.status, again.out) == (0, "mine@1 is the same, 3 tasks: nothing to do\n")
    write("tasks.json", range(1, 4))
    refused = await upcycle("sync", "tasks", "mine")
    assert (refused.status, refused.out) == (2, "")
    assert (
        "1 added, 1 removed, 0 changed, 0 renamed, 2 the same: nothing was changed; give --yes" in refused.err
    )
    assert (await stored(runner, "mine")).revision == 1
    done = await upcycle("sync", "tasks", "tasks.json", "mine", "--yes")
    assert done.out.splitlines()[1:] == ["+ t3", "- t0", "registered as mine@2"]
    assert [task.slug for task in (await stored(runner, "mine")).tasks] == ["t1", "t2", "t3"]
    same = json.loads((await upcycle("sync", "tasks", "mine", "--json")).out)
    assert (same["revision"], same["is_equal"], same["is_registered"]) == (2, True, False)


@pytest.mark.parametrize(("answer", "revision"), [("y\n", 2), ("n\n", 1), ("", 1)])
async def test_a_person_is_asked_before_anything_changes(
    runner: Runner, upcycle: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: str, revision: int
) -> None:
    await register(runner, arith(2))
    write("tasks.json", range(3))
    monkeypatch.setattr("upcycle.cli.sync.can_ask", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    said = await upcycle("sync", "tasks", "tasks.json", "sums")
    assert "+ t2" in said.err
    assert said.err.count("change sums so? [y/N]") == 1
    assert (said.status, (await stored(runner)).revision) == (0 if revision == 2 else 2, revision)


async def test_what_was_held_out_is_not_made_training_data(runner: Runner, upcycle: CommandLine) -> None:
    await register(runner, arith(1, "judge", common_pb2.SPLIT_HELD_OUT))
    write("tasks.json", range(2), name="sums")
    refused = await upcycle("sync", "tasks", "sums", "--yes")
    assert (refused.status, "held out already: taskset judge claimed it" in refused.err) == (2, True)
    assert "sums" not in (await upcycle("tasksets", "list")).out
    as_other = await upcycle("sync", "tasks", "judge", "--yes")
    assert as_other.status == 2
    assert "judge@1 has split held_out and environment 'arith'; the file has split train" in as_other.err


async def test_the_same_tasks_of_another_place_are_moved(
    runner: Runner, upcycle: CommandLine, tmp_path: Path
) -> None:
    await register(runner, arith(2))
    copy = ENVIRONMENTS / "arith_of_sync.py"
    shutil.copy(ENVIRONMENTS / "arith.py", copy)
    try:
        write("tasks.json", range(2), environment=copy.name)
        planned = await upcycle("sync", "tasks", "sums", "--dry-run")
        assert planned.out == f"sums@1: the same tasks, of another place: {copy}\n"
        done = await upcycle("sync", "tasks", "sums", "--yes")
        assert done.out.splitlines()[-1] == "registered as sums@1", done.err
        assert (await stored(runner)).environment.python.path == str(copy)
        assert "nothing to do" in (await upcycle("sync", "tasks", "sums")).out
    finally:
        copy.unlink()


async def test_other_slugs_alone_are_no_change(runner: Runner, upcycle: CommandLine) -> None:
    await register(runner, arith(2))
    write("tasks.json", range(2), slug="n")
    said = await upcycle("sync", "tasks", "sums")
    assert "is the same, 2 tasks; 2 have other slugs in the file, which is no change" in said.out


async def test_what_is_unclear_is_refused_before_any_work(upcycle: CommandLine) -> None:
    for arguments, said in (
        (("mine",), "this folder has no tasks.py or tasks.json"),
        (("gone.json", "mine"), "there is no file gone.json"),
        (("a.json", "b.json"), "one tasks file and one name are needed"),
        (("mine", "yours"), "one tasks file and one name are needed"),
    ):
        refused = await upcycle("sync", "tasks", *arguments)
        assert (refused.status, refused.out, said in refused.err) == (2, "", True), refused.err
    write("tasks.json", range(2))
    write("tasks.jsonl", range(2))
    assert (
        "this folder has tasks.json and tasks.jsonl; name the file"
        in (await upcycle("sync", "tasks", "mine")).err
    )
    unknown = await upcycle("sync", "tasks", "tasks.json", "mine", "--taskset", "other")
    assert (unknown.status, "tasks.json has sums; name one" in unknown.err) == (2, True)
    wrong = await upcycle("sync", "tasks", "tasks.json", "mine@2")
    assert wrong.status == 2
    assert "mine@2" in wrong.err
