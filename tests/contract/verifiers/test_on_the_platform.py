"""An environment of verifiers on the whole platform: `upcycle eval` with the tasks that its program wrote."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stacks import MODEL, Bench, instant_bench
from tests.contract.verifiers.programs import NAME, serving

from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

pytestmark = [pytest.mark.study, pytest.mark.timeout(900)]


async def evaluated(bench: Bench, tasks: Path) -> dict[str, Any]:
    """The last line of `upcycle eval TASKS MODEL --json`."""
    peers = {f"UPCYCLE_PEERS_{name.upper()}": address for name, address in bench.addresses.peers.items()}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("upcycle"),
        *("eval", tasks.name, MODEL, "--channel", "latest", "--json"),
        cwd=tasks.parent,
        env={**os.environ, **peers, "UPCYCLE_OPERATOR_KEY": bench.addresses.platform_key() or ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(300):
        printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    done: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return done


async def body_of(bench: Bench, trajectory: str) -> TrajectoryBody:
    request = pb.GetTrajectoryRequest(trajectory_id=trajectory)
    return (await bench.platform.trajectories.GetTrajectory(request, timeout=30)).body


async def test_its_rows_are_played_with_tools_and_keep_their_rewards(
    python: Path, folder: Path, served_version: str
) -> None:
    path = folder / "tasks.jsonl"
    async with instant_bench(engine="tests.contract.verifiers.sum_engine") as bench:
        with serving(python, folder, "--tasks", str(path)):
            done = await evaluated(bench, path)
        episodes = sorted(done["evaluation"]["episodes"], key=lambda one: str(one["task_slug"]))
        right, wrong = await asyncio.gather(
            *(body_of(bench, episodes[number]["trajectory_id"]) for number in (3, 4))
        )
    assert (done["evaluation"]["taskset"], done["coverage"]["share"]) == (f"{NAME}-train@1", 1.0)
    assert [one["reward"] for one in episodes] == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.2])
    assert [one["subscores"]["exact"] for one in episodes] == [1.0, 1.0, 1.0, 1.0, 0.0]
    (first, second) = right.turns[0].tool_results
    assert (first.content, first.is_error) == ("6", False)
    assert "too large" in second.content
    assert wrong.turns[-1].text == "9"
