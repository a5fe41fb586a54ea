"""Tasks as a table with one row each, the format of a .csv taskset.

Columns: slug, scenario, family, environment (its name), path or url (where it is), split (one for all rows);
`args` holds all arguments as a JSON object, and every other column is one argument. A cell is JSON where it
reads as JSON, else text; an empty cell leaves the argument out, and `""` is the empty text. An argument that
is called like a column has the column `args.NAME`.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from upcycle.errors import TasksetInvalid
from upcycle.task_rows import EnvironmentRef, Task, canonical_json

_OF_THE_ROW: Final = ("slug", "scenario", "family")
_OF_THE_ENVIRONMENT: Final = {"environment": "name", "path": "path", "url": "url"}
_RESERVED: Final = frozenset({*_OF_THE_ROW, *_OF_THE_ENVIRONMENT, "split", "args"})
_PREFIX: Final = "args."


def tasks_to_table(split: str, tasks: Iterable[Task], environment: EnvironmentRef) -> str:
    """The text of a .csv file. environment: of all of them."""
    rows = [_row(split, task, environment) for task in tasks]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def document_from_table(text: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """The taskset as the object of a .json file, without a name, and `FILE:LINE` of each task. Raises
    TasksetInvalid with file and line."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    columns = _columns(reader, where)
    if "scenario" not in columns or "environment" not in columns:
        raise TasksetInvalid(
            f"{where}:1: the columns are {', '.join(columns) or 'none'}",
            "the first line names them: scenario, environment, path and the scenario's arguments",
        )
    if repeated := sorted(name for name in columns if list(columns).count(name) > 1):
        raise TasksetInvalid(f"{where}:1: column {repeated[0]!r} occurs twice", "name each column once")
    tasks, places, splits = list[dict[str, Any]](), list[str](), dict[str, int]()
    try:
        for cells in reader:
            line = f"{where}:{reader.line_num}"
            if None in cells or None in cells.values():
                raise TasksetInvalid(f"{line}: not {len(columns)} cells", "quote a cell that holds a comma")
            splits.setdefault(cells.get("split") or "train", reader.line_num)
            tasks.append(_task(cells, line))
            places.append(line)
    except csv.Error as error:
        raise TasksetInvalid(f"{where}:{reader.line_num}: not CSV: {error}") from error
    if len(splits) > 1:
        raise TasksetInvalid(
            f"{where}:{max(splits.values())}: splits {' and '.join(sorted(splits))} in one file",
            "make one file per split",
        )
    return {"split": next(iter(splits), "train"), "tasks": tasks}, places


def _columns(reader: "csv.DictReader[str]", where: str) -> Sequence[str]:
    try:
        return reader.fieldnames or ()
    except csv.Error as error:
        raise TasksetInvalid(f"{where}:1: not CSV: {error}") from error


def _row(split: str, task: Task, environment: EnvironmentRef) -> dict[str, str]:
    where = environment.to_json()
    row = {"slug": task.slug, "scenario": task.scenario, "family": task.family, "split": split}
    row |= {column: where[key] for column, key in _OF_THE_ENVIRONMENT.items() if key in where}
    if any(not name or name.startswith(_PREFIX) for name in task.args):
        return {**row, "args": task.args_json}
    return {**row, **{_column(name): _cell(value) for name, value in task.args.items()}}


def _column(argument: str) -> str:
    return f"{_PREFIX}{argument}" if argument in _RESERVED else argument


def _cell(value: Any) -> str:
    if isinstance(value, str) and value and value_of_cell(value) == value:
        return value
    return canonical_json(value)


def value_of_cell(cell: str) -> Any:
    """JSON where the cell reads as JSON, else its text."""
    try:
        return json.loads(cell, parse_constant=_no_number)
    except ValueError:
        return cell


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _task(cells: Mapping[str, str], line: str) -> dict[str, Any]:
    arguments = value_of_cell(cells.get("args") or "{}")
    if not isinstance(arguments, dict):
        raise TasksetInvalid(f"{line}: column 'args' is no JSON object", 'write {"query": "500s"}')
    for column, cell in cells.items():
        if cell and column not in _RESERVED:
            arguments[column.removeprefix(_PREFIX)] = value_of_cell(cell)
    named = {key: cells[column] for column, key in _OF_THE_ENVIRONMENT.items() if cells.get(column)}
    row = {name: cells[name] for name in _OF_THE_ROW if cells.get(name)}
    if "name" not in named or "scenario" not in row:
        raise TasksetInvalid(
            f"{line}: no {'scenario' if 'name' in named else 'environment'}", "fill the cell in"
        )
    return {**row, "args": arguments, "environment": named}
