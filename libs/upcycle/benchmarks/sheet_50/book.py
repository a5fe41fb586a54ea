"""A workbook in memory: sheets by name, of each the cells that hold something; and references to them."""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .errors import WorkbookRefused

Value = str | float | int | bool | datetime.date | None
Cell = tuple[int, int]
"""(row, column), both from 1."""
Rows = Sequence[Sequence[Value]]

MAX_ROWS: Final = 2_000
MAX_COLUMNS: Final = 60
MAX_TEXT_CHARS: Final = 32_767
MAX_FORMULA_CHARS: Final = 1_000

_RANGE: Final = re.compile(r"\$?([A-Za-z]{1,3})\$?([0-9]{1,7})(?::\$?([A-Za-z]{1,3})\$?([0-9]{1,7}))?")
_LETTERS: Final = 26


@dataclass(frozen=True, slots=True)
class Area:
    """A block of cells, both corners included."""

    top: int
    left: int
    bottom: int
    right: int

    def cells(self) -> Iterator[Cell]:
        """Row by row."""
        for row in range(self.top, self.bottom + 1):
            for column in range(self.left, self.right + 1):
                yield row, column

    @property
    def num_cells(self) -> int:
        """How many cells it has."""
        return (self.bottom - self.top + 1) * (self.right - self.left + 1)


@dataclass(slots=True)
class Book:
    """sheets: name to the cells that hold something."""

    sheets: dict[str, dict[Cell, Value]] = field(default_factory=dict)

    @classmethod
    def of(cls, sheets: Mapping[str, Rows]) -> "Book":
        """From rows, the first of which is row 1; None is an empty cell."""
        return cls({name: _filled(rows) for name, rows in sheets.items()})

    def sheet(self, name: str) -> dict[Cell, Value]:
        """The cells of a sheet, its name in any case. Raises WorkbookRefused."""
        for known, cells in self.sheets.items():
            if known.casefold() == name.strip().casefold():
                return cells
        raise WorkbookRefused(f"no sheet {name!r:.80}", f"the workbook has {', '.join(self.sheets)}")

    def copy(self) -> "Book":
        """Another workbook with the same cells."""
        return Book({name: dict(cells) for name, cells in self.sheets.items()})

    def differing(self, other: "Book") -> dict[tuple[str, Cell], Value]:
        """What this one holds in each cell where the other one holds something else."""
        found: dict[tuple[str, Cell], Value] = {}
        for name, cells in self.sheets.items():
            before = other.sheets.get(name, {})
            for cell in sorted(cells.keys() | before.keys()):
                if not same(cells.get(cell), before.get(cell)):
                    found[name, cell] = cells.get(cell)
        return found


def same(one: Value, other: Value) -> bool:
    """The same content: 1 and True are not, 1 and 1.0 are."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def is_formula(value: Value) -> bool:
    """What a cell holds is computed."""
    return isinstance(value, str) and value.startswith("=") and len(value) > 1


def area_of(reference: str) -> Area:
    """`B2` or `B2:D9`. Raises WorkbookRefused for what is no reference, or lies outside every sheet."""
    match = _RANGE.fullmatch(reference.strip())
    if match is None:
        raise WorkbookRefused(f"{reference!r:.80} is no cell and no range", "write B2, or B2:D9")
    left, top = column_number(match[1]), int(match[2])
    right, bottom = (column_number(match[3]), int(match[4])) if match[3] else (left, top)
    area = Area(min(top, bottom), min(left, right), max(top, bottom), max(left, right))
    if area.top < 1 or area.bottom > MAX_ROWS or area.right > MAX_COLUMNS:
        last = cell_name((MAX_ROWS, MAX_COLUMNS))
        raise WorkbookRefused(f"there is no cell {reference!r:.80}", f"a sheet has cells A1 to {last}")
    return area


def cell_name(cell: Cell) -> str:
    """(2, 28) -> AB2."""
    row, number = cell
    letters = ""
    while number:
        number, rest = divmod(number - 1, _LETTERS)
        letters = chr(ord("A") + rest) + letters
    return f"{letters}{row}"


def column_number(letters: str) -> int:
    """AB -> 28."""
    number = 0
    for letter in letters.upper():
        number = number * _LETTERS + ord(letter) - ord("A") + 1
    return number


def extent(cells: Mapping[Cell, Value]) -> Cell:
    """The last row and the last column that hold something; (0, 0) of an empty sheet."""
    filled = [cell for cell, value in cells.items() if value is not None]
    return max((row for row, _ in filled), default=0), max((column for _, column in filled), default=0)


def _filled(rows: Rows) -> dict[Cell, Value]:
    return {
        (at, column): value
        for at, row in enumerate(rows, start=1)
        for column, value in enumerate(row, start=1)
        if value is not None
    }
