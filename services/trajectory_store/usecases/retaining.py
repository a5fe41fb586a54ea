"""Removes bodies, and later the rows of episodes, that are old and needed by nothing.

Rows are marked before objects are deleted, and a row goes after its object: whatever a kill leaves is ended
by the next sweep, and no reader finds a row that promises a body which is gone.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from blob_store import BlobStore
from retention import KEPT_FOR_EVER, MIN_AGE, References, SweepOrder, SweepReport, after_from, older_than
from service_kit.errors import as_errors
from trajectory_store import telemetry
from trajectory_store.adapters.sql_retention import SqlRetention
from trajectory_store.domain.retention import OldRow, Removable, StorePolicy, reasons_to_keep

_BATCH: Final = 500
_PARALLEL_DELETES: Final = 16
_US: Final = timedelta(microseconds=1)
_MAX_US: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cutoff:
    """What goes is older than before_us; because of its age where it is older than aged_us, else because of
    the size of all. settled_us: and was settled before. after: key of the last row that was looked at."""

    before_us: int
    aged_us: int
    settled_us: int
    after: tuple[int, str] = (-1, "")


class RemoveOld:
    """One kind of thing, batch by batch."""

    def __init__(
        self,
        what: Removable,
        rows: SqlRetention,
        bodies: BlobStore,
        references: References,
        policy: StorePolicy,
        *,
        now: Callable[[], datetime],
        batch: int = _BATCH,
    ) -> None:
        self._what = what
        self._rows = rows
        self._bodies = bodies
        self._references = references
        self._policy = policy
        self._now = now
        self._batch = batch

    async def __call__(self, order: SweepOrder) -> SweepReport:
        """Raises InvalidRequest, Unavailable, StoreDenied."""
        if order.apply and self._what is Removable.BODIES:
            await self.end_begun()
        age, limit = order.older_than or self._policy.age_of(self._what), self._limit(order)
        if age is None and limit is None:
            return SweepReport(KEPT_FOR_EVER)
        cutoff = await self._cutoff(age, limit, order.after)
        words = _in_words(age, limit)
        found = await self._rows.old_rows(
            self._what, cutoff.before_us, cutoff.after, self._batch, settled_before_us=cutoff.settled_us
        )
        if not found:
            return SweepReport(words)
        runs = {run_id: row.model for row in found for run_id in row.runs}
        kept = reasons_to_keep(found, await self._references.to_runs(runs, release=order.apply))
        going = {row.episode_id: row for row in found if row.episode_id not in kept}
        if order.apply and going:
            done = await self._remove(going, age, limit, cutoff)
            going = {episode_id: row for episode_id, row in going.items() if episode_id in done}
        last = replace(cutoff, after=(found[-1].at_us, found[-1].episode_id))
        return SweepReport(
            words,
            number=len(going),
            size_bytes=self._size(going),
            oldest=min((_EPOCH + row.at_us * _US for row in going.values()), default=None),
            kept=dict(Counter(kept.values())),
            next=_encoded(last) if len(found) == self._batch else "",
        )

    async def end_begun(self) -> None:
        """Delete the objects of bodies that are marked as removed, all of them."""
        while going := await self._rows.bodies_going(self._batch):
            slots = asyncio.Semaphore(_PARALLEL_DELETES)
            with as_errors():
                async with asyncio.TaskGroup() as deletes:
                    for key in going.values():
                        deletes.create_task(self._delete(key, slots))
            await self._rows.bodies_gone(list(going))

    async def _delete(self, key: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            await self._bodies.delete(key)

    async def _remove(
        self, going: Mapping[str, OldRow], age: timedelta | None, limit: int | None, cutoff: Cutoff
    ) -> set[str]:
        at_us = (self._now() - _EPOCH) // _US
        if self._what is Removable.EPISODES:
            done = await self._rows.remove_episodes(going, _in_words(age, None), at_us)
        else:
            reasons = {
                row.episode_id: _in_words(age, None) if row.at_us < cutoff.aged_us else _in_words(None, limit)
                for row in going.values()
            }
            done = await self._rows.remove_bodies(reasons, going, at_us)
            await self.end_begun()
        telemetry.REMOVED.labels(self._what.value).inc(len(done))
        telemetry.REMOVED_BYTES.inc(self._size({name: going[name] for name in done}))
        return done

    def _size(self, rows: Mapping[str, OldRow]) -> int:
        is_body = self._what is Removable.BODIES
        return sum(row.size_bytes for row in rows.values()) if is_body else 0

    def _limit(self, order: SweepOrder) -> int | None:
        asked = order.older_than is not None or self._what is Removable.EPISODES
        return None if asked else self._policy.bodies_bytes

    async def _cutoff(self, age: timedelta | None, limit: int | None, after: str) -> Cutoff:
        """after: of a batch before. It cannot make anything older than it is."""
        now = self._now()
        aged_us = 0 if age is None else (now - age - _EPOCH) // _US
        youngest_us = aged_us if limit is None else (now - MIN_AGE - _EPOCH) // _US
        if after:
            begun = after_from(after, _begun)
            before_us = min(begun.before_us, youngest_us)
            return replace(begun, before_us=before_us, aged_us=aged_us, settled_us=youngest_us)
        beyond_us = 0 if limit is None else await self._rows.beyond_bytes(limit)
        return Cutoff(min(max(aged_us, beyond_us), youngest_us), aged_us, youngest_us)


def _in_words(age: timedelta | None, limit: int | None) -> str:
    parts = [] if age is None else [older_than(age)]
    if limit is not None:
        parts.append(f"oldest beyond {limit} bytes of bodies")
    return ", or ".join(parts)


def _encoded(cutoff: Cutoff) -> str:
    return json.dumps([cutoff.before_us, *cutoff.after])


def _begun(encoded: Any) -> Cutoff:
    before_us, at_us, episode_id = encoded
    if not all(-1 <= int(one) < _MAX_US for one in (before_us, at_us)):
        raise ValueError(encoded)
    return Cutoff(int(before_us), 0, 0, (int(at_us), str(episode_id)))
