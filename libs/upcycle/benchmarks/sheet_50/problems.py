"""A task as it is drawn: the workbook, what is asked, and what is right."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from .book import Book, Cell, Rows, Value, cell_name

MIN_VARIANTS: Final = 3
MAX_DRAWS: Final = 60
_HALF: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Target:
    """A cell that is to hold a formula. part: the name of the subscore that it counts for. formula: one that
    is right."""

    sheet: str
    cell: Cell
    expected: Value
    formula: Value
    part: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that a sheet is to hold below its heading, in any order, each as often as here."""

    sheet: str
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """What one task gives and asks. Either it has targets, or a table."""

    text: str
    sheets: Mapping[str, Rows]
    targets: tuple[Target, ...] = ()
    table: Table | None = None

    def book(self) -> Book:
        """The workbook as it is given."""
        return Book.of(self.sheets)


Maker = Callable[[random.Random, random.Random], Problem]
"""From the generator of what a task is (names, limits, columns) and the generator of its data. The same
first one makes problems of one layout, with other data."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of task in a family."""

    family: str
    name: str
    make: Maker


@dataclass(frozen=True, slots=True)
class Column:
    """A column of targets. formula: with {r} where the row's number goes."""

    heading: str
    formula: str
    values: Sequence[Value] = field(repr=False)


def column_targets(sheet: str, first: Cell, columns: Sequence[Column]) -> tuple[Target, ...]:
    """The targets of columns side by side, whose first cell is given."""
    return tuple(
        Target(
            sheet, (first[0] + at, first[1] + beside), value, one.formula.format(r=first[0] + at), one.heading
        )
        for beside, one in enumerate(columns)
        for at, value in enumerate(one.values)
    )


def asked(sheet: str, first: Cell, columns: Sequence[tuple[str, str]], num_rows: int) -> str:
    """The lines that say what goes where: one per column, as (heading, what it is)."""
    lines = []
    for beside, (heading, meaning) in enumerate(columns):
        top, bottom = (first[0], first[1] + beside), (first[0] + num_rows - 1, first[1] + beside)
        lines.append(f"- {sheet}!{cell_name(top)}:{cell_name(bottom)}, {heading}: {meaning}")
    return "\n".join(lines)


class OnTheHalf(Exception):
    """A number lies between two rounded ones: which of them is right depends on how it was computed."""


def rounded(value: float, digits: int = 2) -> float:
    """As ROUND does. Raises OnTheHalf."""
    scaled = value * 10**digits
    if abs(scaled - math.floor(scaled) - 0.5) < _HALF:
        raise OnTheHalf(f"{value!r} to {digits} digits")
    return round(value, digits)


def problem_of(kind: Kind, seed: str) -> Problem:
    """The problem of a seed, as it is given."""
    return _draw(kind, seed, "given")


def variants_of(kind: Kind, seed: str) -> list[Problem]:
    """The same problem over other data, often enough that no target has one right value everywhere: what a
    formula is recomputed on, and a value that was typed fails on."""
    given = problem_of(kind, seed)
    seen: list[list[Value]] = [[target.expected] for target in given.targets]
    found: list[Problem] = []
    for number in range(MAX_DRAWS):
        variant = _draw(kind, seed, f"variant {number}")
        found.append(variant)
        for values, target in zip(seen, variant.targets, strict=True):
            values.append(target.expected)
        if len(found) >= MIN_VARIANTS and all(len(set(map(repr, values))) > 1 for values in seen):
            break
    return found


def _draw(kind: Kind, seed: str, data: str) -> Problem:
    what = f"sheet-50/{kind.family}/{kind.name}/{seed}"
    for attempt in range(MAX_DRAWS):
        with suppress(OnTheHalf):
            return kind.make(random.Random(what), random.Random(f"{what}/{data}/{attempt}"))
    raise OnTheHalf(f"{what}: no data without a number on the half in {MAX_DRAWS} draws")
