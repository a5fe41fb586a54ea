"""`upcycle tasksets from RUN` against the running service: which tasks it writes, and that held-out ones
are not among them."""

import json
import os
from pathlib import Path

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import (
    arith,
    finished,
    play_to_grade,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.support.command_line import CommandLine

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.cli.taskset_from_run import select
from upcycle.cli.taskset_selection import Selection
from upcycle.tasks import Taskset


@pytest.fixture
def upcycle(runner: Runner, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys, {"tasksets": runner.address})


async def evaluation(runner: Runner, group_size: int = 2) -> str:
    """Of sums t0, t1, t2, unassigned; t2 is held out because of another taskset. Member 0 alone is right."""
    await register(runner, arith(3, split=common_pb2.SPLIT_UNASSIGNED))
    await register(runner, arith(1, "judge", common_pb2.SPLIT_HELD_OUT, first=2))
    run_id = (await submit(runner, run_spec(group_size=group_size))).run_id
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        await finished(runner, run_id)
    return run_id


async def test_a_tasks_file_of_what_a_run_found_hard(
    runner: Runner, upcycle: CommandLine, tmp_path: Path
) -> None:
    run_id = await evaluation(runner)
    hard = tmp_path / "hard.jsonl"
    done = await upcycle("tasksets", "from", run_id, "--below", "0.7", "-o", str(hard))
    assert (done.status, done.out) == (
        0,
        f"{hard}: taskset sums-below-0.7, 2 of 3 tasks; 1 held-out task left out\n",
    )
    written = Taskset.load(hard)
    assert [task.slug for task in written] == ["t0", "t1"]
    assert (written.name, written.split, written.environment.name) == (
        "sums-below-0.7",
        "unassigned",
        "arith",
    )
    stored = (await runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="sums"))).taskset
    assert [task.digest for task in written] == [task.digest for task in stored.tasks[:2]]
    again = await upcycle(
        "tasksets", "from", "last", "--below", "2", "-o", str(hard), "--overwrite", "--json"
    )
    assert json.loads(again.out)["left_out"] == {"held_out": 1, "ungraded": 0}
    nothing = await upcycle("tasksets", "from", run_id, "--no-spread", "-o", str(tmp_path / "none.csv"))
    assert (nothing.status, "no task is chosen by --no-spread" in nothing.err) == (1, True)


async def test_what_names_no_tasks_or_no_new_file_is_refused(
    runner: Runner, upcycle: CommandLine, tmp_path: Path
) -> None:
    run_id = await evaluation(runner)
    hard = tmp_path / "hard.jsonl"
    hard.write_bytes(b"{}")
    for arguments, said in (
        ((run_id, "-o", str(hard)), "nothing says which tasks; give one of --failed, --no-spread, --below X"),
        (
            (run_id, "--failed", "--below", "1", "-o", str(hard)),
            "--failed and --below each choose tasks; give one of them",
        ),
        ((run_id, "--below", "nan", "-o", str(hard)), "--below is nan"),
        ((run_id, "--failed", "-o", str(hard)), "hard.jsonl is there already"),
        ((run_id, "--failed", "-o", str(tmp_path / "hard.py")), "hard.py is no tasks file"),
        ((run_id, "--failed", "-o", str(tmp_path / "no" / "hard.json")), "there is no folder"),
        (("run-none", "--failed", "-o", str(tmp_path / "x.json")), "no run 'run-none'"),
    ):
        refused = await upcycle("tasksets", "from", *arguments)
        assert (refused.status, refused.out) == (2, ""), arguments
        assert said in refused.err
    assert [name for name in os.listdir(tmp_path) if "." in name] == ["hard.jsonl"]
    assert hard.read_bytes() == b"{}"


def answered(*rewards: tuple[str, float, bool]) -> list[taskset_pb2.EpisodeResult]:
    """Graded episodes: slug, reward, whether it succeeded."""
    graded = taskset_pb2.EPISODE_STATUS_GRADED
    return [
        taskset_pb2.EpisodeResult(task_slug=slug, status=graded, reward=reward, success=success)
        for slug, reward, success in rewards
    ]


def test_each_selection_by_the_graded_episodes_of_a_task() -> None:
    slugs = ("solved", "hard", "flat", "once", "missing", "judge")
    sides = [*[common_pb2.SPLIT_TRAIN] * 5, common_pb2.SPLIT_HELD_OUT]
    tasks = [taskset_pb2.Task(slug=slug) for slug in slugs]
    taskset = service_pb2.GetTasksetResponse(taskset=taskset_pb2.Taskset(tasks=tasks), task_splits=sides)
    results = answered(
        ("solved", 1.0, True), ("solved", 0.2, False), ("hard", 0.1, False), ("hard", 0.3, False),
        ("flat", 1.0, True), ("flat", 1.0, True), ("once", 0.0, False), ("judge", 0.0, False),
    )  # fmt: skip
    lost = taskset_pb2.EpisodeResult(task_slug="missing", status=taskset_pb2.EPISODE_STATUS_FAILED)
    for which, chosen in (
        (Selection(failed=True), ("hard", "once")),
        (Selection(no_spread=True), ("flat",)),
        (Selection(below=0.6), ("hard", "once")),
        (Selection(below=0.61), ("solved", "hard", "once")),
    ):
        found = select(taskset, [*results, lost], which.holds)
        assert (found.chosen, found.num_held_out, found.num_ungraded) == (chosen, 1, 1), which
    assert str(found) == "3 of 6 tasks; 1 held-out task left out, 1 without a graded episode"
