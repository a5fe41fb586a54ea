"""A platform is trained, stopped in the middle of a run, backed up, wiped and restored, by its commands."""

import shutil
from pathlib import Path

import pytest
from tests.platform_recipes import MODEL, addresses, register_incident, small_stack, small_training
from tests.platform_records import recorded, served
from tests.support.command_line import run_upcycle, without_settings
from tests.support.waiting import until

from identities.entities import checkpoint_id
from upcycle.api.registry.v1.service_pb2 import SetHeadRequest
from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest, GetLedgerResponse
from upcycle.cli.exits import Exit
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run

pytestmark = [pytest.mark.study, pytest.mark.timeout(900)]


async def command(*words: str) -> tuple[int, str]:
    """Status and messages of one `upcycle` command."""
    status, _, said = await run_upcycle(*words, env=without_settings(), limit_s=300.0)
    return status, said


async def balanced(platform: Platform, run_id: str) -> GetLedgerResponse:
    """The ledger of a run, once all its episodes have ended."""

    async def has_settled() -> GetLedgerResponse | None:
        request = GetLedgerRequest(run_id=run_id)
        ledger = await platform.trajectories.GetLedger(request, timeout=30, wait_for_ready=True)
        return None if ledger.in_flight else ledger

    found: GetLedgerResponse = await until(has_settled, f"the ledger of {run_id} to settle", timeout_s=120)
    return found


async def train_and_leave_a_run_open(platform: Platform) -> tuple[str, str]:
    """(a finished run, whose last checkpoint is head, an open one that has made two steps)."""
    done = (await submit_run(platform, small_training(steps=4, gate=False))).run_id
    assert (await follow_run(platform, done, timeout_s=300)).state == RUN_STATE_COMPLETED
    await balanced(platform, done)
    newest = checkpoint_id(MODEL, max((await recorded(platform, done))["weights"]))
    move = SetHeadRequest(model=MODEL, checkpoint_id=newest, actor="me", reason="to be seen")
    await platform.registry.SetHead(move, timeout=30)
    spec = small_training(steps=8, seed=2, gate=False)
    open_one = (await submit_run(platform, spec)).run_id

    async def has_stepped() -> bool:
        answer = await platform.tasksets.GetRun(GetRunRequest(run_id=open_one), timeout=30)
        return answer.run.step >= 2

    await until(has_stepped, "two steps of the second run", timeout_s=240)
    return done, open_one


async def finishes(platform: Platform, run_id: str) -> None:
    """Follow an open run to its 8 steps, and look into its ledger."""
    finished = await follow_run(platform, run_id, timeout_s=400)
    assert (finished.state, finished.step) == (RUN_STATE_COMPLETED, 8), finished.failure
    ledger = await balanced(platform, run_id)
    assert ledger.requested == ledger.settled > 0
    assert (ledger.trained_twice, ledger.conflicts) == (0, 0)


async def test_a_restored_platform_says_the_same_serves_the_same_and_finishes_its_open_run(
    tmp_path: Path,
) -> None:
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    async with small_stack(old) as stack:
        await register_incident(stack)
        async with Platform(addresses(stack)) as platform:
            done, open_one = await train_and_leave_a_run_open(platform)
            before = await recorded(platform, done)
        status, said = await command("backup", str(folder), "--data-dir", str(old))
        assert (status, "already runs" in said) == (Exit.USAGE, True), said
    status, said = await command("backup", str(folder), "--data-dir", str(old))
    assert status == Exit.OK, said
    status, said = await command("restore", str(folder), "--data-dir", str(old))
    assert (status, "restore into a new platform" in said) == (Exit.USAGE, True), said
    shutil.rmtree(old)

    status, said = await command("restore", str(folder), "--data-dir", str(new))

    assert status == Exit.OK, said
    async with small_stack(new) as stack, Platform(addresses(stack)) as platform:
        after = await recorded(platform, done)
        # The open run may have saved a checkpoint after we looked.
        newer = {
            version: after["weights"].pop(version) for version in after["weights"].keys() - before["weights"]
        }
        assert after == before
        head = before["head"][0]
        digest = before["weights"][head][0]
        key = stack.gateway_key_file.read_text().strip()

        async def serves_head() -> bool:
            return await served(stack.peers["gateway"], key) == (head, digest)

        assert all(not is_head for _, _, is_head in newer.values())
        await until(serves_head, "the gateway to serve head", timeout_s=120)
        await finishes(platform, open_one)
        for name in ("scenario_runner", "trajectory_store", "checkpoint_registry", "grpo_trainer"):
            await stack.wait_ready(name, timeout_s=60)  # no alarm of a gap
