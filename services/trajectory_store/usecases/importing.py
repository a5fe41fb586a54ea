"""Stores what clients played and graded themselves, as `client_graded`: listed where it is asked for, counted
in no ledger, read by interactive training alone.

Bodies are written before rows, and only where their key is free, so a repeated import changes nothing and no
import changes another one.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from blob_store.ref import ref_of_bytes
from identities import objects
from service_kit.errors import InvalidRequest
from trajectory_body import pack
from trajectory_store.adapters.sql_imports import SqlImports
from trajectory_store.adapters.trajectory_bodies import TrajectoryBodies
from trajectory_store.domain.facts import LedgerState, TrajectoryGrade, TrajectoryRecord
from trajectory_store.domain.imports import NO_VERSION, ClientEpisode
from trajectory_store.domain.ledger import Episode

_US: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ImportTrajectories:
    """All trajectories of an import, or none."""

    def __init__(
        self,
        rows: SqlImports,
        bodies: TrajectoryBodies,
        *,
        on_change: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        self._rows = rows
        self._bodies = bodies
        self._on_change = on_change
        self._now = now

    async def __call__(self, given: Sequence[ClientEpisode]) -> list[str]:
        """Their trajectory ids. Raises InvalidRequest, AlreadyImported, Unavailable."""
        _refuse_twice(given)
        at_us = (self._now() - _EPOCH) // _US
        packed = [await asyncio.to_thread(pack, one.body) for one in given]
        rows = [_row(one, data, at_us) for one, data in zip(given, packed, strict=True)]
        missing = await self._rows.missing(rows)
        for row, data in zip(rows, packed, strict=True):
            if row in missing:
                await self._bodies.keep(row, data)
        if await self._rows.add(rows):
            self._on_change()
        return [one.identity.trajectory_id for one in given]


def _refuse_twice(given: Sequence[ClientEpisode]) -> None:
    seen = set[str]()
    for one in given:
        if one.identity.episode_id in seen:
            raise InvalidRequest(
                f"the import holds attempt {one.identity.member} of {one.identity.task_slug!r:.80} twice: "
                f"{one.identity.trajectory_id}"
            )
        seen.add(one.identity.episode_id)


def _row(given: ClientEpisode, data: bytes, at_us: int) -> Episode:
    identity, body = given.identity, given.body
    key = objects.trajectory_body(identity.run_id, identity.episode_id, identity.tenant)
    record = TrajectoryRecord(
        body=ref_of_bytes(key, data),
        oldest_version=NO_VERSION,
        newest_version=NO_VERSION,
        stop_reason=body.stop_reason,
        num_turns=len(body.turns),
        num_sampled_tokens=0,
        recorded_us=at_us,
    )
    return Episode(
        identity=identity,
        state=LedgerState.CLIENT_GRADED,
        reason="",
        step=0,
        since_us=at_us,
        updated_us=at_us,
        record=record,
        grade=TrajectoryGrade(given.reward, given.success, given.subscores, at_us),
        body_checked=True,
    )
