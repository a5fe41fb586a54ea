"""Rows of trajectories that clients graded: no fact is behind them, so no counter moves."""

from collections.abc import Sequence

from sqlalchemy import Connection, insert

from sql_store import Database
from trajectory_store.adapters.rows import row_of
from trajectory_store.adapters.sql_index import load_episodes, lock_feed, move_feed
from trajectory_store.adapters.tables import EPISODES
from trajectory_store.domain.errors import AlreadyImported
from trajectory_store.domain.ledger import Episode


class SqlImports:
    """Each method is one transaction; all raise Unavailable, and AlreadyImported for a row that is there
    with other content."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def missing(self, rows: Sequence[Episode]) -> list[Episode]:
        """Those that are not there."""
        return await self._db.run(lambda connection: _missing(connection, rows))

    async def add(self, rows: Sequence[Episode]) -> int:
        """Add those that are not there, all or none. Returns how many."""
        return await self._db.run(lambda connection: _add(connection, rows))


def _missing(connection: Connection, rows: Sequence[Episode]) -> list[Episode]:
    known = load_episodes(connection, {row.identity.episode_id for row in rows})
    for row in rows:
        held = known.get(row.identity.episode_id)
        if held is not None and not _is_same(held, row):
            raise AlreadyImported(
                f"{row.identity.episode_id} ({held.identity.run_id}) is stored with other content: a "
                "trajectory is written once; give the evaluation another run_id"
            )
    return [row for row in rows if row.identity.episode_id not in known]


def _is_same(held: Episode, row: Episode) -> bool:
    """Repeated by a client that lost the answer; when it came first says nothing."""
    if held.record is None or row.record is None or held.grade is None or row.grade is None:
        return False
    grades = [(one.reward, one.success, one.subscores) for one in (held.grade, row.grade)]
    return held.identity == row.identity and held.record.body == row.record.body and grades[0] == grades[1]


def _add(connection: Connection, rows: Sequence[Episode]) -> int:
    position = lock_feed(connection)
    new = _missing(connection, rows)
    if new:
        values = [row_of(row, position + index) for index, row in enumerate(new, start=1)]
        connection.execute(insert(EPISODES), values)
        move_feed(connection, position + len(new))
    return len(new)
