"""Statements of hot paths: compiled once for each dialect, with rows that go to the driver as they are.

What SQLAlchemy does anew at each execution (cache keys, parameters by name, types by column) costs several
times what SQLite does with a small row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Dialect
from sqlalchemy.sql.dml import Delete, Insert, Update

Row = Mapping[str, Any]


class PreparedRows:
    """A statement that is run for many rows at once. parameters: what each row gives, by name: the columns
    of an insert, each `bindparam` of an update."""

    def __init__(self, statement: Insert | Update | Delete, parameters: Sequence[str]) -> None:
        self._statement = statement
        self._parameters: Final = tuple(parameters)
        self._of_dialect: dict[str, _Compiled] = {}

    def run(self, connection: Connection, rows: Sequence[Row]) -> int:
        """How many rows of the table were added or changed; without rows nothing is done."""
        if not rows:
            return 0
        compiled = self._of_dialect.get(connection.dialect.name)
        if compiled is None:
            compiled = self._compile(connection.dialect)
            self._of_dialect[connection.dialect.name] = compiled
        return connection.exec_driver_sql(compiled.text, compiled.values(rows)).rowcount

    def _compile(self, dialect: Dialect) -> "_Compiled":
        columns = list(self._parameters) if isinstance(self._statement, Insert) else None
        compiled: Any = self._statement.compile(dialect=dialect, column_keys=columns)
        is_by_position = compiled.positiontup is not None
        names = tuple(compiled.positiontup if is_by_position else compiled.binds)
        binds = {
            name: bind
            for name in names
            if (bind := compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        fixed = {name: compiled.binds[name] for name in names if name not in self._parameters}
        return _Compiled(str(compiled), names, binds, fixed, is_by_position)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """binds: what makes a value into the driver's, where one does. fixed: values that no row gives."""

    text: str
    names: Sequence[str]
    binds: Mapping[str, Callable[[Any], Any]]
    fixed: Mapping[str, BindParameter[Any]]
    is_by_position: bool

    def values(self, rows: Sequence[Row]) -> list[Any]:
        fixed = {name: parameter.effective_value for name, parameter in self.fixed.items()}
        each = [{**fixed, **row} for row in rows]
        for row in each:
            for name, bind in self.binds.items():
                row[name] = bind(row[name])
        names = self.names
        if self.is_by_position:
            return [tuple([row[name] for name in names]) for row in each]
        return [{name: row[name] for name in names} for row in each]
