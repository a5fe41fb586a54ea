"""The examples that train on what evaluations sampled, as their reader starts them, against a small stack."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.platform_recipes import EXAMPLE, MODEL, REPOSITORY, addresses, small_stack

from local_stack.stack import Stack
from upcycle import Taskset
from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest
from upcycle.platform import Platform

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]
NUM_TASKS = 24


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform with the incident policy."""
    async with small_stack(tmp_path_factory.mktemp("sources")) as running:
        yield running


async def executed(stack: Stack, *arguments: str) -> str:
    """Standard output of a program that ended well."""
    peers = {f"UPCYCLE_PEERS_{peer.upper()}": at for peer, at in stack.peers.items()}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, **peers, "UPCYCLE_OPERATOR_KEY": addresses(stack).platform_key() or ""},
        cwd=REPOSITORY,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(240):
        out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return out.decode()


async def newest_training(stack: Stack) -> tuple[str, int, int]:
    """State and steps of the newest run, and the episodes that it planned itself."""
    async with Platform(addresses(stack)) as platform:
        listed = await platform.tasksets.ListRuns(ListRunsRequest(limit=1), timeout=10)
    run = listed.runs[0]
    assert run.spec.purpose == PURPOSE_TRAIN
    assert run.state == RUN_STATE_COMPLETED
    return run.run_id, run.step, run.counts.requested


def trained_groups(out: str) -> int:
    """As the last line of both examples says it."""
    found = re.search(r"^(\d+) of 24 groups trained; left out: ", out, re.MULTILINE)
    assert found is not None, out
    return int(found.group(1))


async def counted_once_each(stack: Stack) -> None:
    """Every episode of the evaluations so far is settled, and groups trained whole."""
    async with Platform(addresses(stack)) as platform:
        async with asyncio.timeout(60):
            while True:
                ledger = await platform.trajectories.GetLedger(GetLedgerRequest(), timeout=10)
                if not ledger.in_flight:
                    break
                await asyncio.sleep(0.5)
    assert ledger.requested == ledger.settled
    assert ledger.requested in (NUM_TASKS * 8, 2 * NUM_TASKS * 8)  # of one evaluation, or of both
    assert ledger.by_state["trained"] % 32 == 0  # whole groups of eight, four in a step
    assert ledger.by_state["trained"] > 0


async def test_a_grpc_client_trains_on_evaluations_without_new_episodes(stack: Stack) -> None:
    program = str(REPOSITORY / "examples" / "training" / "grpc_client.py")
    out = await executed(stack, program, stack.peers["tasksets"], MODEL, str(EXAMPLE / "env.py"))
    _, steps, planned = await newest_training(stack)
    assert planned == 0  # nothing was sampled for the training
    assert trained_groups(out) == 4 * steps  # --prompts 4: each step is four groups of the evaluation
    assert steps in (1, 2)
    await counted_once_each(stack)


async def test_the_sdk_trains_on_evaluations_without_new_episodes(stack: Stack, tmp_path: Path) -> None:
    whole = Taskset.load(EXAMPLE / "tasks.py", "incident-train")
    few = Taskset("few-incidents", list(whole)[:NUM_TASKS], "train")
    few.save(tmp_path / "few.json")
    program = ("-m", "examples.training.from_evaluations")
    out = await executed(stack, *program, MODEL, str(tmp_path / "few.json"), "few-incidents")
    run_id, steps, planned = await newest_training(stack)
    assert f"{run_id}: {steps} steps, " in out
    assert planned == 0
    assert trained_groups(out) == 4 * steps
    await counted_once_each(stack)
