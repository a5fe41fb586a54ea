"""What a running planner refuses, as a user of the command line meets it: one line, status 2, no run."""

import sys
from pathlib import Path

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import arith, register
from tests.support.command_line import NO_PEERS, run_upcycle, without_settings

from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2

UPCYCLE = str(Path(sys.executable).parent / "upcycle")


async def upcycle(runner: Runner, folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and standard error."""
    env = {**without_settings(), **NO_PEERS, "UPCYCLE_PEERS_TASKSETS": runner.address}
    status, _, said = await run_upcycle(*arguments, env=env, cwd=folder)
    return status, said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--taskset sums --gate sums",
            "gate taskset 'sums' is of split train; a gate judges on held-out tasks only: register some "
            "under another name with split held_out",
        ),
        (
            "--taskset held",
            "taskset 'held' is held out: it never trains; measure it: upcycle eval held incident, or name it "
            "in --gate",
        ),
        ("--taskset sum", "no taskset 'sum' is registered"),
    ],
)
async def test_a_training_that_may_not_be_is_one_line_and_no_run(
    runner: Runner, tmp_path: Path, options: str, said: str
) -> None:
    await register(runner, arith(4))
    await register(runner, arith(4, name="held", split=common_pb2.SPLIT_HELD_OUT, first=100))
    done, err = await upcycle(runner, tmp_path, "train", "incident", *options.split(), "--steps", "1")
    assert (done, err.count("\n")) == (2, 1), err
    assert err.startswith(f"upcycle: {said}")
    listed = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest())
    assert not listed.runs
