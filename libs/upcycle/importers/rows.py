"""Rows of a data set, each with the words that name it in an error."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from upcycle.errors import TasksetInvalid


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row. where: what names it, as in `row 3`. is_text: its cells are text of a table, which may mean a
    number."""

    where: str
    cells: Mapping[str, Any]
    is_text: bool = False


def rows_of(dataset: Iterable[Any]) -> Iterator[DataRow]:
    """The rows of any iterable of mappings, one after the other: a list, a `datasets.Dataset`, a
    `csv.DictReader`. Raises TasksetInvalid for a row that is no mapping."""
    if isinstance(dataset, csv.DictReader):
        yield from rows_of_table(dataset, "line ")
        return
    if isinstance(dataset, Mapping):
        first = ", ".join(map(repr, list(dataset)[:5]))
        raise TasksetInvalid(
            f"the data set is of type {type(dataset).__name__}, of {first or 'none'}",
            "pass its rows: of a dictionary of splits, one of them",
        )
    for number, row in enumerate(dataset, start=1):
        if not isinstance(row, Mapping):
            raise TasksetInvalid(
                f"row {number} is of type {type(row).__name__}, not a mapping of columns",
                "pass a list of dictionaries, a datasets.Dataset or a csv.DictReader",
            )
        yield DataRow(f"row {number}", row)


def rows_of_table(reader: "csv.DictReader[str]", prefix: str) -> Iterator[DataRow]:
    """The rows of a table with a line of columns; prefix: what stands before the number of a line. Raises
    TasksetInvalid."""
    try:
        columns = list(reader.fieldnames or ())
        if repeated := sorted(name for name in columns if columns.count(name) > 1):
            raise TasksetInvalid(f"{prefix}1: column {repeated[0]!r} occurs twice", "name each column once")
        for cells in reader:
            where = f"{prefix}{reader.line_num}"
            if None in cells or None in cells.values():
                raise TasksetInvalid(
                    f"{where}: not {len(columns)} cells, as the first line has", "quote a cell with a comma"
                )
            yield DataRow(where, cells, is_text=True)
    except csv.Error as error:
        raise TasksetInvalid(f"{prefix}{reader.reader.line_num}: not CSV: {error}") from error
