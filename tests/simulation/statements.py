"""What the services use of SQLAlchemy's Connection, straight on the driver: half of the time of a history was
spent between a statement and SQLite. Statements are compiled, and values converted, by SQLAlchemy.
"""

import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Dialect
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import DBAPIError

_NO_COLUMNS: Final = SimpleResultMetaData(())
Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Rows(IteratorResult[Any]):
    """A result of which everything was fetched. rowcount: rows that the statement changed."""

    rowcount = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What a statement found, which can be read several times."""

    described: SimpleResultMetaData
    rows: list[tuple[Any, ...]]
    rowcount: int

    def result(self) -> Rows:
        """As SQLAlchemy gives it to who asked."""
        result = Rows(self.described, iter(self.rows))
        result.rowcount = self.rowcount
        return result


class Interrupted(BaseException):
    """Other transactions run now; then this one runs again up to here, and finds what it found."""


class _Prepared:
    """One statement in SQL, with what its values and rows have to be converted by."""

    def __init__(self, compiled: Any, dialect: Dialect) -> None:
        self._compiled = compiled
        self._filled = [(column.key, column.default.arg) for column in compiled.insert_prefetch]
        self._lists = [compiled.bind_names[one] for one in compiled.post_compile_params]
        self._expanded: dict[tuple[int, ...], tuple[str, list[tuple[str, int, Any]]]] = {}
        columns = compiled._result_columns
        found = [column.type._cached_result_processor(dialect, None) for column in columns]
        self._converted = [(at, convert) for at, convert in enumerate(found) if convert is not None]
        self._described = SimpleResultMetaData([column.keyname for column in columns]) if columns else None

    def bound(self, values: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """The text and its values in order; lists are expanded."""
        if self._filled:
            values = {**values, **{name: default(None) for name, default in self._filled}}
        sizes = tuple([len(values[name]) for name in self._lists])
        if sizes not in self._expanded:
            self._expanded[sizes] = self._expand(values) if sizes else self._plain()
        text, places = self._expanded[sizes]
        bound = []
        for name, at, convert in places:
            value = values[name] if at < 0 else values[name][at]
            bound.append(value if convert is None else convert(value))
        return text, tuple(bound)

    def _plain(self) -> tuple[str, list[tuple[str, int, Any]]]:
        converts = self._compiled._bind_processors
        return self._compiled.string, [(name, -1, converts.get(name)) for name in self._compiled.positiontup]

    def _expand(self, values: Mapping[str, Any]) -> tuple[str, list[tuple[str, int, Any]]]:
        state = self._compiled._process_parameters_for_postcompile(dict(values))
        converts = {**self._compiled._bind_processors, **state.processors}
        where = {name: (name, -1) for name in state.positiontup}
        for name, parts in state.parameter_expansion.items():
            where |= {part: (name, at) for at, part in enumerate(parts)}
        return state.statement, [(*where[name], converts.get(name)) for name in state.positiontup]

    def found(self, cursor: sqlite3.Cursor) -> "Found":
        """Everything that the statement found."""
        if self._described is None or cursor.description is None:
            return Found(_NO_COLUMNS, [], cursor.rowcount)
        return Found(self._described, [self._row(row) for row in cursor.fetchall()], cursor.rowcount)

    def _row(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._converted:
            return row
        changed = list(row)
        for at, convert in self._converted:
            changed[at] = convert(changed[at])
        return tuple(changed)


def _never() -> bool:
    return False


class SimulatedConnection:
    """One connection to a database in memory."""

    def __init__(self, raw: sqlite3.Connection, dialect: Dialect) -> None:
        self.raw = raw
        self.dialect = dialect
        self.info: dict[str, Any] = {}
        self._read: list[Found] | None = None
        self._num_read = 0
        self._interrupts: Callable[[], bool] = _never
        self._compiled: dict[Any, Any] = {}
        self._prepared: dict[Any, _Prepared] = {}
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def begin(self, read: list[Found] | None = None, interrupts: Callable[[], bool] = _never) -> None:
        """Begin a transaction. read: what it found when it ran before; interrupts: asked after each further
        thing that it reads before it has its turn."""
        self._read, self._num_read, self._interrupts = read, 0, interrupts
        self.raw.execute("BEGIN")

    def take_turn(self) -> None:
        """From here on the transaction runs in one piece: it holds a lock."""
        self._read = None

    def execute(self, statement: Any, parameters: Parameters = None) -> Rows:
        """Raises DBAPIError as SQLAlchemy does."""
        if self._read is None or not statement.is_select or statement._for_update_arg is not None:
            self.take_turn()
            return self._executed(statement, parameters).result()
        self._num_read += 1
        if self._num_read > len(self._read):
            self._read.append(self._executed(statement, parameters))
            if self._interrupts():
                raise Interrupted
        return self._read[self._num_read - 1].result()

    def _executed(self, statement: Any, parameters: Parameters) -> Found:
        many: Any = parameters if isinstance(parameters, list | tuple) else [parameters or {}]
        prepared, compiled, extracted, literals = self._of(statement, tuple(many[0]), len(many) > 1)
        cursor, text, values = self.raw.cursor(), compiled.string, ()
        try:
            for one in many:
                given = compiled.construct_params(
                    one, extracted_parameters=extracted, escape_names=False, _collected_params=literals
                )
                text, values = prepared.bound(given)
                cursor.execute(text, values)
        except sqlite3.Error as error:
            raise DBAPIError.instance(text, values, error, sqlite3.Error, dialect=self.dialect) from error
        return prepared.found(cursor)

    def exec_driver_sql(self, text: str, values: tuple[Any, ...] | list[tuple[Any, ...]] = ()) -> Rows:
        """A statement as the driver knows it; a list has the values of one that is run for many rows."""
        is_many = isinstance(values, list)
        if is_many:
            self.take_turn()
        try:
            cursor = self.raw.executemany(text, values) if is_many else self.raw.execute(text, values)
        except sqlite3.Error as error:
            raise DBAPIError.instance(text, values, error, sqlite3.Error, dialect=self.dialect) from error
        names = [one[0] for one in cursor.description or ()]
        return Found(SimpleResultMetaData(names), cursor.fetchall(), cursor.rowcount).result()

    def _of(self, statement: Any, names: tuple[str, ...], is_many: bool) -> tuple[_Prepared, Any, Any, Any]:
        """A statement that was built once is looked up by itself, one that was built anew by what it says."""
        known = self._known.get(statement)
        if known is not None and (names, is_many) in known:
            found: tuple[_Prepared, Any, Any, Any] = known[names, is_many]
            return found
        compiled, extracted, literals, _ = statement._compile_w_cache(
            self.dialect, compiled_cache=self._compiled, column_keys=sorted(names), for_executemany=is_many
        )
        prepared = self._prepared.get(compiled)
        if prepared is None:
            prepared = self._prepared[compiled] = _Prepared(compiled, self.dialect)
        self._known.setdefault(statement, {})[names, is_many] = prepared, compiled, extracted, literals
        return prepared, compiled, extracted, literals
