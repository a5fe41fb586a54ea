"""Several registries on one database: each decision is made once."""

import asyncio
from itertools import pairwise

from tests.services.checkpoint_registry.conftest import MODEL, Bench

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.domain.errors import HeadMoved
from checkpoint_registry.domain.jobs import JobPhase
from checkpoint_registry.domain.models import CheckpointState


async def test_contending_moves_of_head_lose_no_revision(bench: Bench) -> None:
    for version in (1, 2):
        await bench.save(version)
    targets = [await bench.models.version(MODEL, version) for version in (1, 2)]
    conflicts = 0

    async def writer(index: int) -> None:
        nonlocal conflicts
        moved = 0
        while moved < 5:
            model = await bench.models.model(MODEL)
            target = targets[0] if model.head_version == 2 else targets[1]
            try:
                await bench.models.move_head(
                    target,
                    expected_revision=model.head_revision,
                    actor=f"writer-{index}",
                    reason="race",
                    at=bench.clock(),
                )
            except HeadMoved:
                conflicts += 1
            else:
                moved += 1

    await asyncio.gather(*[writer(index) for index in range(6)])
    moves = await bench.models.head_moves(MODEL)
    assert [move.revision for move in moves] == list(range(1, 32))
    assert all(later.from_checkpoint_id == earlier.to_checkpoint_id for earlier, later in pairwise(moves))
    assert (await bench.models.model(MODEL)).head_revision == 31
    assert len(await bench.events()) == 30


async def test_two_replicas_start_one_evaluation(bench: Bench) -> None:
    await bench.save(1)
    (job,) = await bench.gates.jobs(MODEL, JobPhase.NEW)
    await bench.gate._read_spec(job)
    other = SqlGateStore(bench.database)
    started = await asyncio.gather(
        *[store.start_job(job.checkpoint_id) for store in (bench.gates, other) for _ in range(4)]
    )
    assert sum(started) == 1
    await bench.save(2)
    (second,) = await bench.gates.jobs(MODEL, JobPhase.NEW)
    await bench.gate._read_spec(second)
    # The model's slot is taken, whoever asks.
    assert not await other.start_job(second.checkpoint_id)
    assert await bench.state(2) is CheckpointState.CANDIDATE


async def test_two_replicas_conclude_once(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    for version, rate in ((1, 0.9), (0, 0.3)):
        run_id = bench.planner.order_of(version)
        bench.planner.finish(run_id, rate, bench.clock())
        await asyncio.gather(*[bench.evidence.collect(run_id) for _ in range(4)])
    await asyncio.gather(*[bench.gate.advance(MODEL) for _ in range(4)])
    assert await bench.head() == 1
    assert await bench.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]
