"""A training run on docker-compose.yml, through its published ports, while its containers are killed."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from deploy.kubernetes import edges
from tests.docker.composed import PUBLISHED, Composed
from tests.platform_recipes import EXAMPLE, HELD_OUT_TASKSET, MODEL, POLICY_DIR, TRAIN_TASKSET, small_training
from tests.platform_records import recorded, served
from tests.support.waiting import until

from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_PROMOTED
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListCheckpointsRequest
from upcycle.api.taskset.v1.service_pb2 import GetRunRequest, ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, GateConfig
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest, GetLedgerResponse
from upcycle.cli.tasksets import load_source
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run
from upcycle.uploading import import_parts

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1500)]
STEPS, EVERY = 12, 6
DIALLED = (Path(__file__).parent / "dialled.py").read_text()
VICTIMS = ("rollout-sampler", "grpo-trainer", "scenario-runner", "nats", "seaweedfs", "postgres")
"""Killed one after another, a step apart."""
SERVERS = ("nats", "seaweedfs", "postgres", "otel-collector")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(composed: Composed) -> AsyncIterator[Platform]:
    """A client on this machine; the incident model and its tasksets are there."""
    async with Platform(composed.addresses) as client:
        await client.registry.ImportModel(import_parts(MODEL, POLICY_DIR, if_not_exists=True), timeout=120)
        for name in (TRAIN_TASKSET, HELD_OUT_TASKSET):
            await load_source(str(EXAMPLE / "tasks.py"), name).register(client)
        yield client


@pytest.fixture(scope="module")
def dialled() -> defaultdict[str, set[str]]:
    """Service -> host:port of the containers that it was seen connected to, in the tests of this file."""
    return defaultdict(set)


def look(composed: Composed, dialled: defaultdict[str, set[str]]) -> None:
    """Note whom each service is connected to, or was within the last minute."""
    services = {*edges.ours(), *SERVERS}
    names = {address: name for name in services for address in composed.addresses_of(name)}
    for name in edges.ours():
        for end in json.loads(composed.execute(name, "python", "-c", DIALLED)):
            address, _, port = end.rpartition(":")
            if address in names:
                dialled[name].add(f"{names[address]}:{port}")


async def settled(platform: Platform, run_id: str) -> GetLedgerResponse:
    async def has_settled() -> GetLedgerResponse | None:
        request = GetLedgerRequest(run_id=run_id)
        ledger = await platform.trajectories.GetLedger(request, timeout=30, wait_for_ready=True)
        return None if ledger.in_flight else ledger

    found: GetLedgerResponse = await until(has_settled, "the ledger to settle", timeout_s=120)
    return found


async def test_a_run_is_promoted_though_containers_are_killed(
    composed: Composed, platform: Platform, dialled: defaultdict[str, set[str]]
) -> None:
    spec = small_training(steps=STEPS)
    spec.training.prompts_per_step, spec.training.checkpoint_every_steps = 16, EVERY
    spec.training.learning_rate = 6e-4
    spec.gate.CopyFrom(GateConfig(taskset=HELD_OUT_TASKSET, attempts=2, regression_margin=0.3))
    run_id = (await submit_run(platform, spec)).run_id
    for step, victim in enumerate(VICTIMS, 1):

        async def has_stepped(step: int = step) -> bool:
            request = GetRunRequest(run_id=run_id)
            answer = await platform.tasksets.GetRun(request, timeout=30, wait_for_ready=True)
            return answer.run.step >= step

        await until(has_stepped, f"step {step}, before {victim} is killed", timeout_s=240)
        await asyncio.to_thread(look, composed, dialled)
        await asyncio.to_thread(composed.kill, victim)
        await asyncio.to_thread(composed.start, victim)
    done = await follow_run(platform, run_id, timeout_s=900)
    assert (done.state, done.step) == (RUN_STATE_COMPLETED, STEPS), done.failure
    ledger = await settled(platform, run_id)
    assert ledger.requested == ledger.settled > 0
    assert (ledger.trained_twice, ledger.conflicts) == (0, 0)

    async def is_promoted() -> bool:
        listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=30)
        return any(
            one.state == CHECKPOINT_STATE_PROMOTED and one.run_id == run_id for one in listed.checkpoints
        )

    await until(is_promoted, "a promotion", timeout_s=300)
    assert composed.not_running() == []
    await asyncio.to_thread(look, composed, dialled)


async def test_the_published_gateway_serves_the_promoted_head(composed: Composed, platform: Platform) -> None:
    made = composed.execute("model-gateway", "upcycle-model-gateway", "create-key", "--name", "app")
    key = made.split()[-1]
    head = (await platform.registry.GetModel(GetModelRequest(model=MODEL), timeout=10)).model.head_version
    assert head > 0

    async def serves_head() -> bool:
        return (await served(PUBLISHED["gateway"], key))[0] == head

    await until(serves_head, "the promoted head to be served", timeout_s=60)


async def test_services_connect_to_what_the_policies_for_kubernetes_allow(
    composed: Composed, platform: Platform, dialled: defaultdict[str, set[str]]
) -> None:
    """As seen while they trained, promoted, answered and came back."""
    await asyncio.to_thread(look, composed, dialled)
    beyond = {name: sorted(ends - {*edges.allowed(name)}) for name, ends in dialled.items()}
    assert {name: ends for name, ends in beyond.items() if ends} == {}
    assert all("nats:4222" in dialled[name] for name in edges.ours())
    unseen = {name: sorted({*edges.allowed(name)} - dialled[name]) for name in edges.ours()}
    print("allowed, and not seen:", json.dumps(unseen, indent=1))


async def test_a_backup_restored_into_new_volumes_is_the_same_platform(composed: Composed) -> None:
    async with Platform(composed.addresses) as client:
        run_id = (await client.tasksets.ListRuns(ListRunsRequest(), timeout=30)).runs[-1].run_id
        before = await recorded(client, run_id)
    made = composed.execute("model-gateway", "upcycle-model-gateway", "create-key", "--name", "kept")
    with pytest.raises(AssertionError, match="the platform runs"):
        await asyncio.to_thread(composed.run, "backup", "upcycle", "backup", "/backups/early")

    await asyncio.to_thread(composed.stop)
    assert composed.cut_short() == []
    await asyncio.to_thread(composed.run, "backup", "upcycle", "backup", "/backups/one")
    await asyncio.to_thread(composed.down)
    await asyncio.to_thread(composed.run, "backup", "upcycle", "restore", "/backups/one")
    # The keys that signed went with the volumes: an operator who knows the backup signs it with the new ones.
    await asyncio.to_thread(composed.up, UPCYCLE_SIGNING_UNSIGNED="accept")
    signs = ("upcycle", "signing", "sign", "--apply", "--again")
    await asyncio.to_thread(composed.run, "signing", *signs)
    await asyncio.to_thread(composed.up)

    async with Platform(composed.addresses) as client:
        assert await recorded(client, run_id) == before
    head = before["head"][0]

    async def serves_head() -> bool:
        return await served(PUBLISHED["gateway"], made.split()[-1]) == (head, before["weights"][head][0])

    await until(serves_head, "the restored head to be served", timeout_s=120)
    assert composed.not_running() == []
