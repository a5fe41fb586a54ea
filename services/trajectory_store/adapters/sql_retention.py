"""What the index removes, in SQL. Each method is one bounded transaction; those that write wait for the
feed's lock, as every writer of rows does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, false, select, true, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from sql_store import Database, owned
from trajectory_store.adapters.sql_index import lock_feed, run_of_episode
from trajectory_store.adapters.tables import BODIES, BODIES_GOING, EPISODES, REMOVED_RUNS, WITHOUT_BODY
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.retention import OldRow, Removable

_ROW: Final = EPISODES.c
_CONDITION: Final = {Removable.BODIES: BODIES, Removable.EPISODES: WITHOUT_BODY}
_MOMENT: Final = {Removable.BODIES: _ROW.recorded_us, Removable.EPISODES: _ROW.since_us}
_PIECE: Final = 5000
"""Rows that one statement adds up."""


class SqlRetention:
    """Rows that are old enough, and their removal. All raise Unavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def old_rows(
        self, what: Removable, before_us: int, after: tuple[int, str], limit: int, *, settled_before_us: int
    ) -> list[OldRow]:
        """Ones from before a moment, oldest first, beginning after a key, that were settled before another:
        that is said by another service's clock, so that none alone makes anything old."""
        at = _MOMENT[what]
        query = (
            select(EPISODES, at.label("at_us"))
            .where(_CONDITION[what], owned(EPISODES), at < before_us, tuple_(at, _ROW.episode_id) > after)
            .where(_ROW.updated_us < settled_before_us)
            .order_by(at, _ROW.episode_id)
            .limit(limit)
        )
        return await self._db.run(lambda connection: [_old_row(row) for row in _rows(connection, query)])

    async def beyond_bytes(self, limit: int) -> int:
        """Bodies recorded before this moment are more than so many bytes ago; 0: all of them fit. Adds them
        up from the newest on, in pieces, so that no statement lasts longer the more there are."""
        key = (_ROW.recorded_us, _ROW.episode_id)
        newest = select(*key, _ROW.body_size_bytes).where(BODIES, owned(EPISODES)).limit(_PIECE)
        newest = newest.order_by(*(column.desc() for column in key))
        query, total = newest, 0
        while True:
            rows = await self._db.run(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            for recorded_us, _, size in rows:
                total += size or 0
                if total > limit:
                    return int(recorded_us) + 1
            if len(rows) < _PIECE:
                return 0
            query = newest.where(tuple_(*key) < tuple(rows[-1][:2]))

    async def remove_bodies(
        self, reasons: Mapping[str, str], rows: Mapping[str, OldRow], at_us: int
    ) -> set[str]:
        """Mark the bodies of these episodes as removed, each with its reason; the objects go after this.
        rows: as they were judged. Returns those that were marked now: another replica may have been first, or
        a run may have trained on one since."""
        return await self._db.run(lambda connection: _mark(connection, reasons, rows, at_us))

    async def bodies_going(self, limit: int) -> dict[str, str]:
        """Marked bodies whose objects may still be there: key by episode id."""
        query = select(_ROW.episode_id, _ROW.body_key).where(BODIES_GOING).limit(limit)
        return await self._db.run(
            lambda connection: {episode_id: key for episode_id, key in connection.execute(query)}
        )

    async def bodies_gone(self, episode_ids: Sequence[str]) -> None:
        """Their objects are deleted."""

        def work(connection: Connection) -> None:
            lock_feed(connection)
            gone = update(EPISODES).where(_ROW.episode_id.in_(episode_ids)).values(body_deleted=true())
            connection.execute(gone)

        await self._db.run(work)

    async def remove_episodes(self, rows: Mapping[str, OldRow], why: str, at_us: int) -> set[str]:
        """Delete rows that have no body, and remember their runs in the same transaction. Counters stay. One
        on which a run trained since it was judged stays."""
        return await self._db.run(lambda connection: _delete(connection, rows, why, at_us))


def _rows(connection: Connection, query: Any) -> Any:
    return connection.execute(query).mappings()


def _old_row(row: Any) -> OldRow:
    state, size = LedgerState(row["state"]), row["body_size_bytes"] or 0
    names = ("episode_id", "run_id", "trained_by_run", "at_us", "tenant", "model")
    doubtful = row["in_conflict"] or row["trained_twice"]
    return OldRow(**{name: row[name] for name in names}, state=state, size_bytes=size, is_doubtful=doubtful)


def _as_judged(row: Any, rows: Mapping[str, OldRow]) -> bool:
    judged = rows[row.episode_id]
    return bool((row.run_id, row.trained_by_run) == (judged.run_id, judged.trained_by_run))


def _mark(
    connection: Connection, reasons: Mapping[str, str], rows: Mapping[str, OldRow], at_us: int
) -> set[str]:
    lock_feed(connection)
    marked = set[str]()
    for why in sorted(set(reasons.values())):
        ids = [episode_id for episode_id, reason in reasons.items() if reason == why]
        still = and_(BODIES, _ROW.episode_id.in_(ids))
        found = connection.execute(select(_ROW.episode_id, _ROW.run_id, _ROW.trained_by_run).where(still))
        now = {row.episode_id for row in found if _as_judged(row, rows)}
        marks = {"body_removed_us": at_us, "body_removed_why": why, "body_deleted": false()}
        mark = update(EPISODES).where(_ROW.episode_id.in_(now)).values(**marks, body_checked=true())
        connection.execute(mark)
        marked |= now
    return marked


def _delete(connection: Connection, rows: Mapping[str, OldRow], why: str, at_us: int) -> set[str]:
    lock_feed(connection)
    still = and_(WITHOUT_BODY, _ROW.episode_id.in_(rows))
    query = select(_ROW.episode_id, _ROW.tenant, _ROW.run_id, _ROW.trained_by_run).where(still)
    found = [row for row in connection.execute(query) if _as_judged(row, rows)]
    gone = {row.episode_id for row in found}
    connection.execute(delete(EPISODES).where(_ROW.episode_id.in_(gone)))
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(REMOVED_RUNS)
    counted = {"num_episodes": REMOVED_RUNS.c.num_episodes + insert.excluded.num_episodes}
    known = insert.on_conflict_do_update(index_elements=["tenant", "run_id"], set_=counted)
    # A row that a step alone made has the run that trained; late facts name the episode's own.
    removed = Counter((row.tenant, run_of_episode(row.episode_id) or row.run_id) for row in found)
    counts = [
        {"tenant": tenant, "run_id": run_id, "why": why, "removed_us": at_us, "num_episodes": number}
        for (tenant, run_id), number in removed.items()
    ]
    if counts:
        connection.execute(known, counts)
    return gone
