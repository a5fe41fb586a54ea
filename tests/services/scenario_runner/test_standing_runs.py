"""`up --standing` against the running planner: one run per file, found again, begun again once it is over."""

from pathlib import Path
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.fleets import ENVIRONMENTS

from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.cli.standing import Standing, keep, read
from upcycle.environment import load_environment
from upcycle.platform import Addresses, Platform
from upcycle.tasks import Taskset

NO_ADDRESS = "127.0.0.1:1"


def write_sums(folder: Path, count: int) -> None:
    """A tasks file of so many sums."""
    env = load_environment(ENVIRONMENTS / "arith.py")
    rows = [env.scenarios["sum"].task(a=a, b=1, slug=f"{a}+1") for a in range(1, count + 1)]
    Taskset("sums", rows, "train").save(folder / "sums.json")


@pytest.fixture
def standing(tmp_path: Path) -> Standing:
    """A file beside a tasks file of two sums."""
    write_sums(tmp_path, 2)
    path = tmp_path / "run.toml"
    head = 'taskset = "sums.json"\ngroup_size = 2\npolicy.model = "incident"\n'
    path.write_text(f"{head}[training]\nsteps = 9\nprompts_per_step = 2\n")
    return read(path)


def client(runner: Runner) -> Platform:
    peers = dict.fromkeys(("trajectories", "training", "registry", "gateway"), NO_ADDRESS)
    return Platform(
        Addresses({**peers, "tasksets": runner.address, "environments": runner.address}, "the test")
    )


async def brought(runner: Runner, standing: Standing) -> list[str]:
    async with client(runner) as platform:
        return await keep(platform, standing)


async def going(runner: Runner) -> list[Any]:
    listed = await runner.tasksets.ListRuns(pb.ListRunsRequest(unfinished=True))
    return list(listed.runs)


async def test_one_run_over_restarts_and_another_once_it_is_over(
    start_runner: Start, standing: Standing
) -> None:
    runner = await start_runner()
    (line,) = await brought(runner, standing)
    (run,) = await going(runner)
    assert line.startswith(f"standing run {run.run_id} trains incident on sums for 9 steps; ")
    await runner.tasksets.PauseRun(pb.PauseRunRequest(run_id=run.run_id))
    await runner.service.stop()

    runner = await start_runner()
    write_sums(standing.path.parent, 3)  # a new revision of the taskset
    (line,) = await brought(runner, standing)
    assert f"{run.run_id} " in line
    listed = await runner.tasksets.ListTasksets(pb.ListTasksetsRequest())
    assert [(one.name, one.revision) for one in listed.tasksets] == [("sums", 2)]
    assert f"upcycle runs resume {run.run_id}" in line
    assert [one.run_id for one in await going(runner)] == [run.run_id]

    await runner.tasksets.CancelRun(pb.CancelRunRequest(run_id=run.run_id))
    async for _ in runner.tasksets.WatchRun(pb.WatchRunRequest(run_id=run.run_id)):
        continue
    (line,) = await brought(runner, standing)
    assert run.run_id not in line
    assert (await brought(runner, standing)) == [line]
    assert len(await going(runner)) == 1


async def test_another_training_run_of_the_model_is_named_with_both_ways_out(
    runner: Runner, standing: Standing, tmp_path: Path
) -> None:
    await brought(runner, standing)
    (run,) = await going(runner)
    other = tmp_path / "other.toml"
    other.write_text(standing.path.read_text().replace("steps = 9", "steps = 8"))
    first, *ways = await brought(runner, read(other))
    assert first == f"no standing run: incident is being trained by {run.run_id} on sums"
    assert f"upcycle runs stop {run.run_id} --wait" in ways[0]
    assert "upcycle models fork incident" in ways[1]
    assert [one.run_id for one in await going(runner)] == [run.run_id]


async def test_what_the_platform_refuses_is_one_line(runner: Runner, standing: Standing) -> None:
    path = standing.path
    path.write_text(path.read_text().replace('"incident"', '"nobody"'))
    (line,) = await brought(runner, read(path))
    assert line.startswith("no standing run: ")
    assert "no model 'nobody'" in line
    path.write_text('taskset = "absent"\npolicy.model = "incident"\n')
    (line,) = await brought(runner, read(path))
    assert "absent" in line
