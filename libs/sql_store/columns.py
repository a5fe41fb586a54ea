"""Column types that mean the same on SQLite and Postgres."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime, Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from sql_store.tenants import current_tenant


def columns(names: str, kind: TypeEngine[Any] | type[TypeEngine[Any]], **options: Any) -> list[Column[Any]]:
    """Columns of one type, by names with spaces between. options: of each Column.

    Queries need no options: keys, lengths, defaults and indexes are in the migration that makes the table.
    A column `tenant` is filled in by every insert that does not name it.
    """
    return [Column(name, kind, **{**_filled(name), **options}) for name in names.split()]


def _filled(name: str) -> dict[str, Any]:
    return {"default": current_tenant} if name == "tenant" else {}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware moment; stored in UTC, read back aware. Refuses naive values, which mean a different
    moment elsewhere.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value.isoformat()} has no time zone: use an aware datetime")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """From the database; SQLite keeps no zone."""
        if value is None:
            return None
        moment: datetime = value
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
