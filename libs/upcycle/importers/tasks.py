"""Rows into tasks of one scenario: which column is which argument, which is the id."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final, TypedDict

from upcycle.environment.core import Environment
from upcycle.errors import ArgumentsInvalid, TasksetInvalid
from upcycle.importers.rows import DataRow
from upcycle.scenario import Scenario
from upcycle.task_rows import EnvironmentRef, Task, canonical_json, not_json
from upcycle.task_tables import value_of_cell

Pick = str | Callable[[Mapping[str, Any]], Any] | None
"""What a row says: the name of a column, or a function of the row."""
Arguments = Mapping[str, str] | Callable[[Mapping[str, Any]], Mapping[str, Any]] | None
"""{argument: column}, or a function of the row; by default columns are arguments of the same name."""
_SHOWN: Final = 12


class Columns(TypedDict, total=False):
    """What a row says of its task."""

    arguments: Arguments
    ids: Pick
    families: Pick


@dataclass(frozen=True, slots=True)
class ScenarioTarget:
    """The scenario that the tasks are of. parameters: JSON schema of its arguments, where it is known."""

    environment: EnvironmentRef
    scenario: str
    parameters: Mapping[str, Any] | None = None
    check: Callable[[Mapping[str, Any]], object] = dict

    @property
    def properties(self) -> Mapping[str, Any]:
        """Arguments and their schemas."""
        return dict((self.parameters or {}).get("properties") or {})


def target_of(scenario: Scenario | str, environment: "Environment | EnvironmentRef | None") -> ScenarioTarget:
    """Raises TasksetInvalid for a scenario by name without an environment, and UnknownName."""
    if isinstance(scenario, str) and isinstance(environment, Environment):
        scenario = environment.scenario_named(scenario)
    if isinstance(scenario, Scenario):
        schema = scenario.schema
        where = environment if isinstance(environment, EnvironmentRef) else scenario.environment
        return ScenarioTarget(where, scenario.name, schema.parameters, schema.check)
    if environment is None or isinstance(environment, Environment):
        raise TasksetInvalid(
            f"scenario {scenario!r} is a name, and no environment is named",
            "pass the scenario itself, or environment=",
        )
    return ScenarioTarget(environment, scenario)


@dataclass(frozen=True, slots=True)
class RowTasks:
    """Makes a task of each row. ids: what its slug is, by default made of the content; families: what its
    family is, by default the scenario's name."""

    target: ScenarioTarget
    arguments: Arguments = None
    ids: Pick = None
    families: Pick = None

    def read(self, rows: Iterable[DataRow], most: int) -> Iterator[Task]:
        """One task a row. Raises TasksetInvalid: it names the row, and the column where it is one; also for
        more than `most` rows, without reading further."""
        rows, places = iter(rows), dict[str, str]()
        for row in islice(rows, most):
            task = self._task(row)
            if (before := places.setdefault(task.slug, row.where)) != row.where:
                same = "the same task" if self.ids is None else f"the same id, {task.slug!r:.80},"
                way_out = "leave one out" if self.ids else "leave one out, or name a column of ids"
                raise TasksetInvalid(f"{row.where}: {same} as {before}", way_out)
            yield task
        if (more := next(rows, None)) is not None:
            raise TasksetInvalid(
                f"{more.where}: more than {most} rows, as many as a taskset takes", "take a part of them"
            )

    def _task(self, row: DataRow) -> Task:
        arguments = self._arguments(row)
        slug = _text(self._picked(row, self.ids, "id"), row, "id") if self.ids is not None else ""
        family = self._picked(row, self.families, "family") if self.families is not None else ""
        named = _text(family, row, "family") if self.families is not None else self.target.scenario
        try:
            self.target.check(arguments)
            return Task(self.target.environment, self.target.scenario, canonical_json(arguments), slug, named)
        except (ArgumentsInvalid, TasksetInvalid) as error:
            name = not_json(arguments) if isinstance(error, TasksetInvalid) else ""
            said = f"argument {name!r}: {error.message}" if name else error.message
            raise TasksetInvalid(f"{row.where}: {said}", error.hint) from error

    def _arguments(self, row: DataRow) -> dict[str, Any]:
        if callable(self.arguments):
            found = self.arguments(row.cells)
            if not isinstance(found, Mapping):
                raise TasksetInvalid(
                    f"{row.where}: the function of arguments returned {type(found).__name__}",
                    "let it return a dictionary",
                )
            return dict(found)
        columns = self.arguments if self.arguments is not None else self._same_names(row)
        cells = {name: _cell(row, column) for name, column in columns.items()}
        if not row.is_text:
            return cells
        return {name: self._meant(name, text) for name, text in cells.items() if text}

    def _same_names(self, row: DataRow) -> Mapping[str, str]:
        """Columns that are called like an argument; all but id and family where arguments are not known."""
        known = self.target.parameters
        if known is None:
            others = {one for one in (self.ids, self.families) if isinstance(one, str)}
            return {name: name for name in row.cells if name not in others}
        required = known.get("required") or ()
        return {name: name for name in self.target.properties if name in row.cells or name in required}

    def _meant(self, argument: str, text: str) -> Any:
        """A cell of a table: text for an argument that is text, else JSON where it reads as JSON."""
        is_text = self.target.properties.get(argument, {}).get("type") == "string"
        return text if is_text else value_of_cell(text)

    def _picked(self, row: DataRow, pick: Pick, what: str) -> Any:
        if callable(pick):
            return pick(row.cells)
        return _cell(row, str(pick), what)


def _cell(row: DataRow, column: str, what: str = "") -> Any:
    if column in row.cells:
        return row.cells[column]
    known = [str(name) for name in row.cells]
    near = get_close_matches(column, known, n=1)
    there = (
        f"it has {', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"
        if known
        else "it is empty"
    )
    asked = f" for the {what}" if what else ""
    raise TasksetInvalid(
        f"{row.where}: no column {column!r}{asked}", f"did you mean {near[0]!r}?" if near else there
    )


def _text(value: Any, row: DataRow, what: str) -> str:
    """An id or a family: text, or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    raise TasksetInvalid(
        f"{row.where}: {what} {value!r:.80} is no text", "fill it in, or name another column"
    )
