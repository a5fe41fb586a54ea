"""A watcher looks at each change once, also at those that it does not want."""

import asyncio

from tests.services.trajectory_store import events
from tests.services.trajectory_store.test_sql_index import facts

from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.queries import FeedChange, TrajectoryFilter
from trajectory_store.usecases.reading import WatchTrajectories


async def test_changes_of_other_runs_are_not_looked_at_again(index: SqlIndex) -> None:
    """A watcher of a quiet run read all changes of all others since its own last one, after every batch."""
    looks: list[int] = []
    changes = index.changes

    async def noted(wanted: TrajectoryFilter, after: int, limit: int) -> list[FeedChange]:
        looks.append(after)
        return await changes(wanted, after, limit)

    index.changes = noted  # type: ignore[method-assign]
    watch = WatchTrajectories(index, poll_s=0.01)
    await index.project(facts(*(events.recorded(number, run="run-1") for number in range(50))))
    seen = watch(TrajectoryFilter(run_id="run-2"), 0)
    first = asyncio.ensure_future(anext(seen))
    async with asyncio.timeout(60):
        while len(looks) < 3:
            await asyncio.sleep(0.01)
        await index.project(facts(events.recorded(99, run="run-2")))
        change = await first
    assert looks[:3] == [0, 50, 50]
    assert change.position == 51
