"""What a gradient was taken on keeps its body as long as a checkpoint has the gradient."""

from datetime import timedelta

import pytest
from google.protobuf.message import Message
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL, START
from tests.services.trajectory_store.retention_harness import RetentionHarness, facts

from identities import objects
from retention import Reference
from sql_store import Database
from trajectory_store.domain.retention import Removable, StorePolicy

BODIES = Removable.BODIES


@pytest.fixture
def both(db: Database) -> RetentionHarness:
    return RetentionHarness(db)


async def test_what_trained_although_it_was_settled_otherwise_keeps_its_lineage(
    both: RetentionHarness,
) -> None:
    """A failed episode in a step, and one that two steps claim: each body is one that a checkpoint needs."""
    old = both
    for number in (0, 1, 2):
        key = objects.trajectory_body("run-e", events.episode_id(number, "run-e"))
        body = await old.bodies.put(key, b"x")
        ended: Message = events.graded(number, run="run-e", purpose=EVAL, body=body)
        if number == 0:
            ended = events.failed(number, run="run-e", purpose=EVAL)
        recorded = events.recorded(number, run="run-e", purpose=EVAL, body=body)
        await old.index.project(facts(events.requested(number, run="run-e", purpose=EVAL), recorded, ended))
    await old.index.project(facts(events.stepped([0, 1], 3, run="run-e", by="run-t")))
    await old.index.project(facts(events.stepped([1], 4, run="run-e", by="run-u")))
    old.references.needed = [Reference("run-t", "lineage of a checkpoint", only_trained=True)]
    report = await old.sweep(BODIES, apply=True)
    assert (report.number, report.kept) == (1, {"lineage of a checkpoint": 2})
    old.references.needed = []
    report = await old.sweep(BODIES, apply=True)
    assert (report.number, report.kept) == (0, {"facts that contradict each other": 2})
    assert len(old.memory.objects) == 2


@pytest.mark.parametrize("what", list(Removable))
async def test_what_a_run_trains_on_while_others_are_asked_stays(
    both: RetentionHarness, what: Removable
) -> None:
    """No service was asked about that run: the episode is judged again by the next sweep."""
    old = both
    await old.settle(0, 1)
    if what is Removable.EPISODES:
        await old.sweep(BODIES, apply=True)

    async def trained() -> None:
        await old.index.project(facts(events.stepped([0], 3, run="run-e", by="run-t")))

    old.references.meanwhile = trained
    assert (await old.sweep(what, apply=True)).number == 1
    row = await old.index.find_episode(events.episode_id(0, "run-e"))
    assert row is not None
    assert row.trained_by_run == "run-t"
    assert (row.body_removed_us is None) == (what is BODIES)


async def test_a_sampler_whose_clock_is_behind_makes_no_body_old(both: RetentionHarness) -> None:
    """It was recorded years ago, by that clock, and graded today, by another one."""
    old = both
    key = objects.trajectory_body("run-e", events.episode_id(0, "run-e"))
    body = await old.bodies.put(key, b"x")
    early = events.recorded(0, run="run-e", purpose=EVAL, body=body)
    early.recorded_at.FromDatetime(START - timedelta(days=3000))
    ended = events.graded(0, run="run-e", purpose=EVAL, body=body)
    await old.index.project(facts(events.requested(0, run="run-e", purpose=EVAL), early, ended))
    old.now = START + timedelta(days=29)
    assert (await old.sweep(BODIES, apply=True)).number == 0
    old.policy = StorePolicy(bodies_bytes=0)
    old.now = START + timedelta(hours=23)
    assert (await old.sweep(BODIES, apply=True)).number == 0
    old.now = START + timedelta(days=2)
    assert (await old.sweep(BODIES, apply=True)).number == 1
