"""Several registries on one database: each decision is made once."""

import asyncio
from itertools import pairwise

from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.domain.errors import HeadMoved
from checkpoint_registry.domain.jobs import JobPhase
from checkpoint_registry.domain.models import CheckpointState


async def test_contending_moves_of_head_lose_no_revision(harness: RegistryHarness) -> None:
    for version in (1, 2):
        await harness.save(version)
    targets = [await harness.models.version(MODEL, version) for version in (1, 2)]
    conflicts = 0

    async def writer(index: int) -> None:
        nonlocal conflicts
        moved = 0
        while moved < 5:
            model = await harness.models.model(MODEL)
            target = targets[0] if model.head_version == 2 else targets[1]
            try:
                await harness.models.move_head(
                    target,
                    expected_revision=model.head_revision,
                    actor=f"writer-{index}",
                    reason="race",
                    at=harness.clock(),
                )
            except HeadMoved:
                conflicts += 1
            else:
                moved += 1

    await asyncio.gather(*[writer(index) for index in range(6)])
    moves = await harness.models.head_moves(MODEL)
    assert [move.revision for move in moves] == list(range(1, 32))
    assert all(later.from_checkpoint_id == earlier.to_checkpoint_id for earlier, later in pairwise(moves))
    assert (await harness.models.model(MODEL)).head_revision == 31
    assert len(await harness.events()) == 30


async def test_two_replicas_start_one_evaluation(harness: RegistryHarness) -> None:
    await harness.save(1)
    (job,) = await harness.gates.jobs(MODEL, JobPhase.NEW)
    await harness.gate._read_spec(job)
    other = SqlGateStore(harness.database)
    started = await asyncio.gather(
        *[store.start_job(job.checkpoint_id) for store in (harness.gates, other) for _ in range(4)]
    )
    assert sum(started) == 1
    await harness.save(2)
    (second,) = await harness.gates.jobs(MODEL, JobPhase.NEW)
    await harness.gate._read_spec(second)
    # No replica starts a second evaluation of the model.
    assert not await other.start_job(second.checkpoint_id)
    assert await harness.state(2) is CheckpointState.CANDIDATE


async def test_two_replicas_conclude_once(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    run_id = harness.planner.order_of(1)
    harness.planner.finish_pair(run_id, 0.9, 0.3, harness.clock())
    await asyncio.gather(*[harness.play.collect(run_id) for _ in range(4)])
    await asyncio.gather(*[harness.gate.advance(MODEL) for _ in range(4)])
    assert await harness.head() == 1
    assert await harness.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]
