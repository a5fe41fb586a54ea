"""Usage rows in SQL, written in batches outside the requests' path."""

import asyncio
import logging
from collections import deque
from dataclasses import fields

from sqlalchemy import insert

from model_gateway.adapters import tables
from model_gateway.domain.records import UsageRow
from model_gateway.telemetry import USAGE_DROPPED
from service_kit.loops import pause
from sql_store import Database
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_FLUSH_S = 0.5
_BATCH = 500
_MAX_WAITING = 50_000
# dataclasses.asdict copies deeply; that costs more than the insert.
_COLUMNS = tuple(one.name for one in fields(UsageRow))


class SqlUsageSink:
    """Rows wait in memory for at most a flush interval.

    While the database is unavailable, the newest 50,000 are kept; a crash loses what was not flushed.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._waiting: deque[UsageRow] = deque()

    def add(self, row: UsageRow) -> None:
        """Never blocks, never raises; what a full buffer drops is counted."""
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
            USAGE_DROPPED.inc()
        self._waiting.append(row)

    async def run(self, stop: asyncio.Event) -> None:
        """Flushes at intervals, and a last time when stopped."""
        while await pause(stop, _FLUSH_S):
            await self.flush()
        await self.flush()

    async def flush(self) -> None:
        """Writes what waits; keeps it while the database is unavailable. A row that it refuses is dropped."""
        size = _BATCH
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
            try:
                await self._write(batch)
            except Unavailable as error:
                self._waiting.extendleft(reversed(batch))
                log.warning("usage_waits", extra={"rows": len(self._waiting), "why": str(error)})
                return
            except Exception as error:
                if len(batch) > 1:
                    self._waiting.extendleft(reversed(batch))
                    size = 1
                    continue
                USAGE_DROPPED.inc()
                size = _BATCH
                log.error("usage_refused", exc_info=error, extra={"request_id": batch[0].request_id})

    async def _write(self, batch: list[UsageRow]) -> None:
        rows = [{name: getattr(row, name) for name in _COLUMNS} for row in batch]
        await self._db.run(lambda connection: connection.execute(insert(tables.usage), rows))
