"""Usage rows in SQL, written in batches outside the requests' path."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Select, and_, case, cast, func, insert, literal_column, select

from model_gateway.adapters import tables
from model_gateway.domain.records import ModelUsage, UsageRow
from model_gateway.domain.usage_reports import MAX_ROWS, UsageQuery, UsageTotals, too_many_rows
from model_gateway.telemetry import USAGE_DROPPED
from service_kit.loops import pause
from sql_store import Database, owned
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_FLUSH_S = 0.5
_BATCH = 500
_MAX_WAITING = 50_000
# dataclasses.asdict copies deeply; that costs more than the insert.
_COLUMNS = tuple(one.name for one in fields(UsageRow))
_TOTALS: Final = tuple(one.name for one in fields(UsageTotals))
_FAILED: Final = 400


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


class SqlUsage:
    """What the rows add up to; those of the last half second may be on their way."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def spent_today(self, key_id: str, now: datetime) -> float:
        """The cost of a key's requests since 00:00 UTC. Raises Unavailable."""
        table = tables.usage
        day = now.replace(hour=0, minute=0, second=0, microsecond=0)
        mine = and_(owned(table, key_id=key_id), table.c.started_at >= day)
        total = select(func.coalesce(func.sum(table.c.cost), 0.0)).where(mine)
        return float(await self._db.read(lambda connection: connection.execute(total).scalar_one()))

    async def by_model(self, key_id: str, since: datetime) -> Sequence[ModelUsage]:
        """Of a key, by the name of the model. Requests that were refused count as requests. Raises
        Unavailable."""
        table = tables.usage
        mine = and_(owned(table, key_id=key_id), table.c.started_at >= since)
        sums = (
            func.sum(column) for column in (table.c.prompt_tokens, table.c.completion_tokens, table.c.cost)
        )
        query = select(table.c.model, func.count(), *sums).where(mine)
        grouped = query.group_by(table.c.model).order_by(table.c.model)

        def work(connection: Connection) -> list[ModelUsage]:
            return [
                ModelUsage(model, requests, int(prompt), int(completion), float(cost))
                for model, requests, prompt, completion, cost in connection.execute(grouped)
            ]

        return await self._db.read(work)

    async def report(self, query: UsageQuery) -> Sequence[UsageTotals]:
        """Rows by day, then those of the highest cost and the most tokens first. Raises BadRequest for too
        many, Unavailable."""
        statement = _report(query, self._db.dialect)
        read = await self._db.read(lambda connection: connection.execute(statement).mappings().all())
        if len(read) > MAX_ROWS:
            raise too_many_rows()
        return [UsageTotals(**{name: row[name] for name in _TOTALS}) for row in read]


def _report(query: UsageQuery, dialect: str) -> Select[Any]:
    usage, key = tables.usage, tables.api_key
    is_asked_for = usage.c.started_at >= query.since
    if query.key_id is not None:
        is_asked_for = and_(is_asked_for, usage.c.key_id == query.key_id)
    tokens = {name: _total(usage.c[name]) for name in ("prompt_tokens", "completion_tokens")}
    cost = func.coalesce(func.sum(usage.c.cost), 0.0)
    columns = {"day": _day(dialect), "key": usage.c.key_id, "model": usage.c.model}
    by = [columns[name] for name in query.by]
    shown = {
        "day": columns["day"] if "day" in query.by else literal_column("''"),
        "key_id": columns["key"] if "key" in query.by else literal_column("''"),
        "key_name": func.coalesce(func.max(key.c.name), "") if "key" in query.by else literal_column("''"),
        "model": columns["model"] if "model" in query.by else literal_column("''"),
        "requests": func.count(),
        "failed": _total(case((usage.c.status >= _FAILED, 1), else_=0)),
        **tokens,
        "cost": cost,
    }
    order = [*by[: query.by.count("day")], cost.desc(), sum(tokens.values()).desc(), *by]
    return (
        select(*(column.label(name) for name, column in shown.items()))
        .select_from(usage.outerjoin(key, key.c.key_id == usage.c.key_id))
        .where(owned(usage), is_asked_for)
        .group_by(*by)
        .having(func.count() > 0)
        .order_by(*order)
        .limit(MAX_ROWS + 1)
    )


def _total(column: Any) -> Any:
    """Postgres adds whole numbers up to a decimal."""
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


def _day(dialect: str) -> Any:
    """In UTC. Without bound parameters: Postgres would take each for another one in GROUP BY."""
    started = tables.usage.c.started_at
    if dialect == "postgresql":
        return func.to_char(func.timezone(literal_column("'UTC'"), started), literal_column("'YYYY-MM-DD'"))
    return func.date(started)
