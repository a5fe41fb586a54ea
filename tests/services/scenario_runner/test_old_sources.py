"""Removal of packed sources: what goes, what a run and a taskset keep, what a new use makes young again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.source_runs import SourcesHarness
from tests.services.scenario_runner.test_deploying import source

from blob_store import MemoryBlobStore
from identities import objects
from retention import SweepOrder
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.tables import RUN, TASKSET
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.usecases.retaining_sources import RemoveSources
from scenario_runner.usecases.views import find_run
from upcycle.environment.deployed import deployed_path
from upcycle.environment.source_files import SourceFiles

ARITH = (ENVIRONMENTS / "arith.py").read_bytes()
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def variant(number: int) -> SourceFiles:
    """The same environment with another digest."""
    return source(ARITH + f"# {number}\n".encode())


class Uses:
    """In the place of the plan's transaction: digests that something refers to."""

    def __init__(self, **used: str) -> None:
        self._used, self.old_runs = used, self
        self.noted: list[str] = []

    async def read(self, work: Any) -> Any:
        return work(self)

    transact = read

    def note_source(self, name: str, digest: str, outcome: str) -> None:
        self.noted.append(digest)

    def sources_in_use(self, digests: list[str]) -> dict[str, str]:
        return {digest: why for digest, why in self._used.items() if digest in digests}


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


async def stored(blobs: MemoryBlobStore, *ages_d: float) -> list[str]:
    """Sources packed so many days ago."""
    digests = []
    for number, days in enumerate(ages_d):
        files = variant(number)
        await SourceStore(blobs, now=lambda: NOON).keep(files)
        blobs.written[objects.packed_source(files.digest)] = NOON - timedelta(days=days)
        digests.append(files.digest)
    return digests


async def swept(remove: RemoveSources, *, apply: bool = True) -> tuple[int, dict[str, int]]:
    """All batches: how many went, what stayed and why."""
    number, stayed, after = 0, dict[str, int](), ""
    while True:
        report = await remove(SweepOrder(apply, after=after))
        number += report.number
        for why, count in report.kept.items():
            stayed[why] = stayed.get(why, 0) + count
        if not (after := report.next):
            return number, stayed


@pytest.mark.parametrize("batch", [1, 2, 100])
async def test_what_is_old_and_used_by_nothing_goes(batch: int) -> None:
    blobs = MemoryBlobStore()
    old, of_run, of_taskset, young, other = await stored(blobs, 40, 40, 40, 20, 31)
    uses: Any = Uses(**{of_run: "a run was judged by it", of_taskset: "a taskset is of it"})
    store = SourceStore(blobs, now=lambda: NOON)
    remove = RemoveSources(uses, store, timedelta(days=30), now=lambda: NOON, batch=batch)
    expected = (2, {"a run was judged by it": 1, "a taskset is of it": 1})
    assert await swept(remove, apply=False) == expected
    assert len(blobs.objects) == 5
    assert await swept(remove) == expected
    left = {key.rpartition("/")[2] for key in blobs.objects}
    assert left == {f"{digest}.zip" for digest in (of_run, of_taskset, young)}
    assert await store.find(old) is None
    assert set(uses.noted) == {old, other}
    assert other not in str(left)


async def test_without_an_age_they_are_kept_for_ever() -> None:
    blobs = MemoryBlobStore()
    await stored(blobs, 4000)
    uses: Any = Uses()
    report = await RemoveSources(uses, SourceStore(blobs), None, now=lambda: NOON)(SweepOrder(True))
    assert (report.policy, report.number, len(blobs.objects)) == ("kept for ever", 0, 1)


async def test_a_source_that_is_used_again_is_young_again_and_one_that_went_is_packed_again() -> None:
    blobs, clock, files = MemoryBlobStore(), Clock(), variant(0)
    clock.now = datetime.now(UTC)
    store = SourceStore(blobs, now=clock)
    await store.keep(files)
    key = objects.packed_source(files.digest)
    blobs.written[key] = clock.now - timedelta(days=40)
    await store.keep(files)  # a new run, by the process that packed it before
    assert clock.now - blobs.written[key] < timedelta(hours=1)
    await SourceStore(blobs).remove(files.digest)  # of another replica
    await store.keep(files)
    assert await store.find(files.digest) is not None


async def test_runs_and_tasksets_that_are_there_are_uses_and_removed_ones_are_not(
    sources: SourcesHarness,
) -> None:
    planner = sources.planner
    await sources.register()
    run_id = await sources.evaluation()
    of_run, of_taskset, of_nothing = (f"{number}" * 64 for number in (1, 2, 3))

    def work(unit: Any) -> None:
        taskset = unit.taskset(find_run(unit, run_id).spec.taskset)
        unit.move_taskset(taskset.key, PythonEnvironment("arith", deployed_path(of_taskset)))

    await planner.plan.transact(work)
    judged = sa.update(RUN).where(RUN.c.run_id == run_id)
    await sources.database.run(lambda sql: sql.execute(judged.values(source_digest=of_run)))

    async def used() -> dict[str, str]:
        asked = [of_run, of_taskset, of_nothing]
        found: dict[str, str] = await planner.plan.read(lambda unit: unit.old_runs.sources_in_use(asked))
        return found

    assert await used() == {of_run: "a run was judged by it", of_taskset: "a taskset is of it"}
    gone = {"removed_at": planner.now}
    await sources.database.run(lambda sql: sql.execute(sa.update(RUN).values(**gone)))
    await sources.database.run(lambda sql: sql.execute(sa.update(TASKSET).values(deleted_at=planner.now)))
    assert await used() == {}
