"""Reading what was sampled: one trajectory, a page, a stream of changes, an export; checking every body once.

The first reader of a body that cannot be used quarantines it: marked, published as a fact, never returned.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from identities.entities import episode_of
from service_kit.loops import until_stopped
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.trajectory_bodies import TrajectoryBodies
from trajectory_store.domain.errors import BodyCorrupt, BodyRemoved, TrajectoryRemoved, UnknownTrajectory
from trajectory_store.domain.hacks import HACK
from trajectory_store.domain.ledger import Episode
from trajectory_store.domain.queries import FeedChange, PageKey, TrajectoryFilter
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

log = logging.getLogger(__name__)

_CHANGES_PER_READ: Final = 200
_MAX_REASON_CHARS: Final = 500


class ReadBody:
    """One body, or its quarantine."""

    def __init__(self, index: SqlIndex, bodies: TrajectoryBodies, *, confirm_after_s: float = 1.0) -> None:
        """confirm_after_s: a bad body is read again after so long, and quarantined when it is bad again."""
        self._index = index
        self._bodies = bodies
        self._confirm_after_s = confirm_after_s

    async def __call__(self, episode: Episode) -> TrajectoryBody:
        """Raises BodyCorrupt (the trajectory is then quarantined), BodyRemoved, Unavailable,
        UnknownTrajectory."""
        refuse_removed(episode)
        if episode.quarantine and not episode.quarantine.startswith(HACK):
            raise BodyCorrupt(f"{episode.identity.episode_id} is quarantined: {episode.quarantine}")
        try:
            return await self._bodies.read_body(episode)
        except BodyCorrupt as error:
            log.warning("body_suspect", extra={"episode_id": episode.identity.episode_id, "why": str(error)})
        await asyncio.sleep(self._confirm_after_s)
        try:
            return await self._bodies.read_body(episode)
        except BodyCorrupt as error:
            refuse_removed(await self._index.find_episode(episode.identity.episode_id))
            await self._quarantine(episode, str(error))
            raise

    async def _quarantine(self, episode: Episode, reason: str) -> None:
        episode_id = episode.identity.episode_id
        log.error("trajectory_quarantined", extra={"episode_id": episode_id, "why": reason})
        await self._index.quarantine(episode, reason[:_MAX_REASON_CHARS])


def refuse_removed(episode: Episode | None) -> None:
    """Raises BodyRemoved for a row whose body retention removed."""
    if episode is not None and episode.body_removed_us is not None:
        raise BodyRemoved(
            f"the body of {episode.identity.episode_id} was removed by retention on "
            f"{day_of(episode.body_removed_us)}: {episode.body_removed_why}; its row and its reward are kept"
        )


def day_of(at_us: int) -> str:
    """A moment as people read it, to the minute."""
    return f"{datetime.fromtimestamp(at_us / 1_000_000, UTC):%Y-%m-%d %H:%M} UTC"


class GetTrajectory:
    """Summary and body of one trajectory."""

    def __init__(self, index: SqlIndex, read: ReadBody) -> None:
        self._index = index
        self._read = read

    async def __call__(self, trajectory_or_episode_id: str) -> tuple[Episode, TrajectoryBody]:
        """Raises UnknownTrajectory, TrajectoryRemoved, BodyRemoved, BodyCorrupt, Unavailable."""
        episode_id = episode_of(trajectory_or_episode_id)
        episode = await self._index.find_episode(episode_id)
        if episode is None:
            removal = await self._index.removal_of(episode_id)
            if removal is not None:
                raise TrajectoryRemoved(
                    f"episode {episode_id} has no row: of its run, retention removed rows on "
                    f"{day_of(removal[0])}: {removal[1]}; the counts of the run are kept"
                )
            raise UnknownTrajectory.named(trajectory_or_episode_id)
        return episode, await self._read(episode)


class ListTrajectories:
    """Pages, newest first."""

    def __init__(self, index: SqlIndex) -> None:
        self._index = index

    async def __call__(
        self, wanted: TrajectoryFilter, after: PageKey | None, size: int
    ) -> tuple[list[Episode], PageKey | None]:
        """A page, and the key of the next one; None: there is none."""
        found = await self._index.page(wanted, after, size + 1)
        return found[:size], _key_of(found[size - 1]) if len(found) > size else None


class WatchTrajectories:
    """Changes as they happen, to any number of watchers."""

    def __init__(self, index: SqlIndex, *, poll_s: float) -> None:
        """poll_s: how soon a change made by another replica is seen; changes of this one are seen at once."""
        self._index = index
        self._poll_s = poll_s
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Have every watcher look for changes now."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def __call__(self, wanted: TrajectoryFilter, after: int | None) -> AsyncIterator[FeedChange]:
        """Endless. `after`: position of the last change seen; None begins now. Raises Unavailable."""
        position = await self._index.position() if after is None else after
        while True:
            changed = self._changed
            newest = await self._index.position()  # what is newer than this the next look finds
            changes = await self._index.changes(wanted, position, _CHANGES_PER_READ)
            for change in changes:
                yield change
                position = change.position
            if len(changes) < _CHANGES_PER_READ:
                # Changes that it does not want are not looked at again, or each look would be longer.
                position = max(position, newest)
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._poll_s)


@dataclass(frozen=True, slots=True)
class ExportChunk:
    """Trajectories of one page with their bodies, and how many were left out: as unusable, and because
    retention removed their bodies."""

    trajectories: Sequence[tuple[Episode, TrajectoryBody]]
    quarantined: int
    removed: int = 0


class ExportTrajectories:
    """Everything that a filter selects, newest first, a bounded number of bodies in memory at a time."""

    def __init__(self, index: SqlIndex, read: ReadBody, *, page_size: int, parallel_reads: int) -> None:
        self._index = index
        self._read = read
        self._page_size = page_size
        self._parallel_reads = parallel_reads

    async def __call__(self, wanted: TrajectoryFilter) -> AsyncIterator[ExportChunk]:
        """Raises Unavailable; what was sent until then is whole."""
        after: PageKey | None = None
        while page := await self._index.page(wanted, after, self._page_size):
            after = _key_of(page[-1])
            limit = asyncio.Semaphore(self._parallel_reads)
            bodies = await asyncio.gather(*(self._body(episode, limit) for episode in page))
            pairs = list(zip(page, bodies, strict=True))
            whole = [(episode, body) for episode, body in pairs if isinstance(body, TrajectoryBody)]
            removed = sum(body is BodyRemoved for body in bodies)
            yield ExportChunk(whole, len(page) - len(whole) - removed, removed)
            if len(page) < self._page_size:
                return

    async def _body(
        self, episode: Episode, limit: asyncio.Semaphore
    ) -> TrajectoryBody | type[BodyCorrupt | BodyRemoved]:
        """The body, or the class of the error that says why there is none. A reward hack is left out like a
        body that cannot be used: what is exported may train."""
        if episode.quarantine:
            return BodyCorrupt
        async with limit:
            try:
                return await self._read(episode)
            except (BodyCorrupt, BodyRemoved) as error:
                return type(error)


class CheckBodies:
    """Reads each recorded body once and soon, so that a bad one is known before it is needed."""

    def __init__(self, index: SqlIndex, read: ReadBody, *, idle_s: float, batch_size: int) -> None:
        """idle_s: pause when there was nothing left to check."""
        self._index = index
        self._read = read
        self._idle_s = idle_s
        self._batch_size = batch_size

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; what is not checked then is checked after the next start."""
        more = asyncio.Event()

        async def check() -> None:
            if await self.check_once(stop) == self._batch_size:
                more.set()

        await until_stopped(stop, check, every_s=self._idle_s, wake=more, waiting="body_checks_wait")

    async def check_once(self, stop: asyncio.Event) -> int:
        """Check one batch, one body after the other, until `stop` is set; returns how many there were. Raises
        Unavailable."""
        episodes = await self._index.unchecked(self._batch_size)
        good: list[str] = []
        try:
            for episode in episodes:
                if stop.is_set():  # a body that must be read twice takes a second
                    break
                try:
                    await self._read(episode)
                except (BodyCorrupt, BodyRemoved):
                    continue
                good.append(episode.identity.episode_id)
        finally:
            if good:
                await self._index.mark_checked(good)
        return len(episodes)


def _key_of(episode: Episode) -> PageKey:
    if episode.record is None:
        raise AssertionError(f"{episode.identity.episode_id} was paged without a record")
    return PageKey(episode.record.recorded_us, episode.identity.episode_id)
