"""Rows made by the database itself: an INSERT … SELECT over consecutive numbers, the indexes after it."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import sqlalchemy as sa

_NEUTRAL: Final = {str: "''", bool: "FALSE", int: "0", float: "0", dict: "'{}'"}


_LEFT_TO_DATABASE: Final = ("id", "new_task")
"""A number that it gives, and one that refers to a row where it is not null."""


class Filler(ABC):
    """One database, with the few functions that the two dialects spell differently."""

    @abstractmethod
    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Of one statement, its rows."""

    @abstractmethod
    def numbers(self, count: int) -> str:
        """A source of rows with a column n from 0."""

    @abstractmethod
    def padded(self, number: str, width: int) -> str:
        """Decimal digits with leading zeros."""

    @abstractmethod
    def hexed(self, number: str, width: int) -> str:
        """The same, hexadecimal."""

    @abstractmethod
    def moment(self, seconds: str) -> str:
        """Seconds since 1970 as a moment."""

    @abstractmethod
    def json(self, text: str) -> str:
        """A text as JSON."""

    @abstractmethod
    def no_bytes(self) -> str:
        """Bytes, none."""

    @abstractmethod
    def indexes(self, table: str) -> Mapping[str, str]:
        """The statements that made them, by name; without those of constraints."""

    @abstractmethod
    def triggers(self, table: str) -> Mapping[str, str]:
        """The statements that made those that would run with each row, by name."""

    @abstractmethod
    def finish(self) -> None:
        """What the database itself does some time after so many rows came."""

    def fill(self, table: sa.Table, count: int, values: Mapping[str, str]) -> None:
        """values: an expression over n for each column that needs one."""
        indexes, triggers = self.indexes(table.name), self.triggers(table.name)
        for kind, names in {"INDEX": indexes, "TRIGGER": triggers}.items():
            for name in names:
                self.run(f"DROP {kind} {name}")
        columns = {**self._neutral(table), **values}
        into, expressions = ", ".join(columns), ", ".join(columns.values())
        self.run(f"INSERT INTO {table.name} ({into}) SELECT {expressions} FROM {self.numbers(count)}")
        for statement in (*indexes.values(), *triggers.values()):
            self.run(statement)

    def _neutral(self, table: sa.Table) -> dict[str, str]:
        """For each text and number, also where it may be null."""
        kinds = {column.name: getattr(column.type, "impl_instance", column.type) for column in table.columns}
        of_type = {name: kind.python_type for name, kind in kinds.items() if name not in _LEFT_TO_DATABASE}
        return {name: _NEUTRAL[kind] for name, kind in of_type.items() if kind in _NEUTRAL}


class SqliteFiller(Filler):
    """A file that no service has open."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("synchronous=OFF", "journal_mode=OFF", "cache_size=-400000", "temp_store=MEMORY"):
            self.run(f"PRAGMA {pragma}")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()

    def numbers(self, count: int) -> str:
        return (
            "(WITH RECURSIVE numbers(n) AS "
            f"(SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count - 1}) SELECT n FROM numbers)"
        )

    def padded(self, number: str, width: int) -> str:
        return f"printf('%0{width}d', {number})"

    def hexed(self, number: str, width: int) -> str:
        return f"printf('%0{width}x', {number})"

    def moment(self, seconds: str) -> str:
        return f"strftime('%Y-%m-%d %H:%M:%f000', {seconds}, 'unixepoch')"

    def json(self, text: str) -> str:
        return text

    def no_bytes(self) -> str:
        return "x''"

    def indexes(self, table: str) -> Mapping[str, str]:
        return self._made("index", table)

    def triggers(self, table: str) -> Mapping[str, str]:
        return self._made("trigger", table)

    def _made(self, kind: str, table: str) -> Mapping[str, str]:
        return dict(
            self.run(
                "SELECT name, sql FROM sqlite_master "
                f"WHERE type = '{kind}' AND tbl_name = '{table}' AND sql IS NOT NULL"
            )
        )

    def finish(self) -> None:
        self.run("PRAGMA journal_mode=WAL")
        self._connection.close()


class PostgresFiller(Filler):
    """A database of a server that tests start."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.run("SET session_replication_role = replica")
        self.run("SET maintenance_work_mem = '512MB'")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def numbers(self, count: int) -> str:
        return f"generate_series(0, {count - 1}::bigint) AS numbers(n)"

    def padded(self, number: str, width: int) -> str:
        return f"lpad(({number})::text, greatest({width}, length(({number})::text)), '0')"

    def hexed(self, number: str, width: int) -> str:
        return f"lpad(to_hex({number}), {width}, '0')"

    def moment(self, seconds: str) -> str:
        return f"to_timestamp({seconds})"

    def json(self, text: str) -> str:
        return f"({text})::json"

    def no_bytes(self) -> str:
        return "''::bytea"

    def indexes(self, table: str) -> Mapping[str, str]:
        return dict(
            self.run(
                "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
                f"AND tablename = '{table}' AND indexname NOT IN (SELECT conname FROM pg_constraint)"
            )
        )

    def triggers(self, table: str) -> Mapping[str, str]:
        """None: `session_replication_role` keeps them from running."""
        return {}

    def finish(self) -> None:
        self.run("VACUUM ANALYZE")
        self._connection.close()


@contextmanager
def filler(url: str) -> Iterator[Filler]:
    """Of the database with this URL, which has its tables."""
    is_file = url.startswith("sqlite:///")
    opened: Filler = SqliteFiller(url.removeprefix("sqlite:///")) if is_file else PostgresFiller(url)
    yield opened
    opened.finish()
