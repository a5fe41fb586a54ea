"""What clients graded grows old as evaluations do: removed by age, beside them, and counted nowhere."""

from datetime import timedelta

import pytest
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import START
from tests.services.trajectory_store.retention_harness import MONTH, RetentionHarness, facts
from tests.services.trajectory_store.test_imports import RUN, importing, said

from retention import Reference
from sql_store import Database
from trajectory_store.adapters.sql_imports import SqlImports
from trajectory_store.adapters.trajectory_bodies import TrajectoryBodies
from trajectory_store.domain.errors import BodyRemoved, TrajectoryRemoved
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.queries import TrajectoryFilter
from trajectory_store.domain.retention import Removable
from trajectory_store.usecases.importing import ImportTrajectories
from trajectory_store.usecases.reading import GetTrajectory, ReadBody
from trajectory_store.wire.imports import imports_from_wire

BODIES, EPISODES = Removable.BODIES, Removable.EPISODES
OF_CLIENTS = TrajectoryFilter(state=LedgerState.CLIENT_GRADED)


@pytest.fixture
def old(db: Database) -> RetentionHarness:
    return RetentionHarness(db)


async def imported(harness: RetentionHarness, *positions: int) -> list[str]:
    use = ImportTrajectories(
        SqlImports(harness.db),
        TrajectoryBodies(harness.bodies),
        on_change=lambda: None,
        now=lambda: START + timedelta(hours=1),
    )
    return await use(imports_from_wire(importing(*map(said, positions))))


async def test_they_go_by_age_with_their_bodies_and_a_late_step_brings_none_back(
    old: RetentionHarness,
) -> None:
    ids = await imported(old, 0, 1)
    await old.settle(0)
    read = GetTrajectory(old.index, ReadBody(old.index, TrajectoryBodies(old.bodies), confirm_after_s=0.0))
    assert (await read(ids[0]))[1].answer == "OOM"
    assert await old.sweep_all(BODIES) == 3
    assert old.memory.objects == {}
    with pytest.raises(BodyRemoved, match="was removed by retention"):
        await read(ids[0])
    old.now += 3 * MONTH
    assert await old.sweep_all(EPISODES) == 3
    with pytest.raises(TrajectoryRemoved, match="retention removed rows"):
        await read(ids[0])
    completed = events.stepped([], 3, by="interactive-incident")
    completed.trajectory_ids.extend(ids)
    await old.index.project(facts(completed))
    assert await old.num_rows() == 0
    ledger = await old.index.ledger("", 0)
    assert dict(ledger.by_label) == {"evaluated": 1}, "that of the evaluation beside them"


async def test_one_that_an_interactive_step_trained_stays_as_long_as_that_run_is_needed(
    old: RetentionHarness,
) -> None:
    trained, other = await imported(old, 0, 1)
    completed = events.stepped([], 3, by="interactive-incident")
    completed.trajectory_ids.append(trained)
    await old.index.project(facts(completed))
    old.references.needed = [Reference("interactive-incident", "a kept checkpoint", only_trained=True)]
    assert await old.sweep_all(BODIES) == 1
    left = {one.identity.episode_id: one.body_deleted for one in await old.index.page(OF_CLIENTS, None, 10)}
    assert left == {trained.removeprefix("traj-"): False, other.removeprefix("traj-"): True}
    assert RUN in old.references.released
