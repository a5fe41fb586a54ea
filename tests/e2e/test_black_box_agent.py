"""An agent that knows nothing of the platform, evaluated by a command: its episodes have tokens, rewards."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.platform_recipes import MODEL
from tests.support.waiting import until

from grpo_trainer.domain.token_rows import episode_tokens
from local_stack.stack import Stack
from upcycle.api.common.v1.common_pb2 import SPLIT_TRAIN
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.trajectory_pb2 import LEDGER_STATE_EVALUATED, TrajectorySummary
from upcycle.platform import Platform

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "black_box"


async def evaluated(stack: Stack, folder: Path) -> dict[str, object]:
    """The last line of `upcycle eval --json` with the example's agent, two attempts at each of its tasks."""
    variables = {f"UPCYCLE_PEERS_{name.upper()}": address for name, address in stack.peers.items()}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("upcycle"),
        *("eval", str(EXAMPLE / "tasks.py"), MODEL, "--group", "2", "--json"),
        *("--agent", f"cmd: {sys.executable} {EXAMPLE / 'agent.py'}"),
        cwd=folder,
        env={**os.environ, **variables, "UPCYCLE_API_KEY": stack.gateway_key_file.read_text().strip()},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    done: dict[str, object] = json.loads(printed.splitlines()[-1])
    return done


async def test_an_agent_with_a_loop_of_its_own_is_evaluated_with_its_tokens(
    stack: Stack, platform: Platform, tmp_path: Path
) -> None:
    done = await evaluated(stack, tmp_path)
    sessions = done["sessions"]
    assert isinstance(sessions, dict)
    assert sessions["left"] == {}
    assert len(sessions["graded"]) == 6
    ids = set(sessions["graded"])
    wanted = pb.TrajectoryFilter(run_id=sessions["run_id"], state=LEDGER_STATE_EVALUATED)

    async def all_listed() -> list[TrajectorySummary] | None:
        request = pb.ListTrajectoriesRequest(filter=wanted, page_size=100)
        listed = (await platform.trajectories.ListTrajectories(request, timeout=10)).trajectories
        found = [one for one in listed if one.episode.trajectory_id in ids]
        return found if len(found) == len(ids) else None

    found = await until(all_listed, "the sessions", timeout_s=60)
    assert done["reward_mean"] == pytest.approx(sum(one.reward for one in found) / len(found))
    assert len({one.episode.group_id for one in found}) == 3, "two attempts at each of three tasks"
    assert {one.episode.split for one in found} == {SPLIT_TRAIN}
    for one in found:
        request = pb.GetTrajectoryRequest(trajectory_id=one.episode.trajectory_id)
        body = (await platform.trajectories.GetTrajectory(request, timeout=10)).body
        tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
        assert tokens.num_trained == one.num_sampled_tokens > 0
    ledger = await platform.trajectories.GetLedger(pb.GetLedgerRequest(run_id=sessions["run_id"]), timeout=10)
    assert (ledger.requested, ledger.conflicts) == (ledger.settled + ledger.in_flight, 0)
