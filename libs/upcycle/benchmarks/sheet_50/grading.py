"""The reward of a workbook: the share of what is asked that is right, and stays right on other data.

A formula's cell counts where it holds a formula whose value is right in the given workbook and in each
variant: the same workbook with other data, into which what the agent wrote is put. Values that were typed
fail there. A list's row counts as a whole, and rows that are not asked for lower the share. Where a given
cell was changed the reward is 0.
"""

import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Final

from upcycle import EvaluationResult, SubScore

from .book import Book, Cell, Value, cell_name, is_formula
from .problems import Kind, Problem, Table, Target, problem_of, variants_of
from .recompute import FormulaError, Recalculation, serial

MAX_ROWS_SHARE: Final = 1.5
"""A list of more rows than so many times those that are asked for earns nothing: it lists candidates."""
_TOLERANCE: Final = 1e-6
_SHOWN: Final = 5


def grade(kind: Kind, seed: str, book: Book) -> EvaluationResult:
    """The reward of what the agent left."""
    problem = problem_of(kind, seed)
    written = book.differing(problem.book())
    if disturbed := _disturbed(problem, written):
        names = ", ".join(disturbed[:_SHOWN])
        return EvaluationResult(0.0, False, info={"reason": f"given cells were changed: {names}"})
    if not written:
        return EvaluationResult(0.0, False, info={"reason": "nothing was written"})
    if problem.table is not None:
        return _grade_table(problem.table, book)
    return _grade_targets(kind, seed, problem, written, book)


def agrees(found: Value, expected: Value) -> bool:
    """A computed value is the expected one; a day may be its number."""
    if isinstance(found, FormulaError) or found is None:
        return False
    if isinstance(expected, datetime.date):
        expected = serial(expected)
    if isinstance(found, datetime.date):
        found = serial(found) if not isinstance(expected, str) else found.isoformat()
    if isinstance(found, bool) or isinstance(expected, bool) or isinstance(found, str):
        return type(found) is type(expected) and found == expected
    if not isinstance(expected, int | float):
        return False
    return abs(found - expected) <= _TOLERANCE * max(1.0, abs(expected))


def _disturbed(problem: Problem, written: dict[tuple[str, Cell], Value]) -> list[str]:
    given = problem.book()
    return [f"{sheet}!{cell_name(cell)}" for sheet, cell in written if cell in given.sheets.get(sheet, {})]


def _grade_targets(
    kind: Kind, seed: str, problem: Problem, written: dict[tuple[str, Cell], Value], book: Book
) -> EvaluationResult:
    right = {at for at, one in enumerate(problem.targets) if is_formula(written.get((one.sheet, one.cell)))}
    typed = len(problem.targets) - len(right)
    right = _right(problem.targets, right, book)
    at_first = len(right)
    if right:
        for variant in variants_of(kind, seed):
            right = _right(variant.targets, right, _overlaid(variant.book(), written))
    missed = [
        f"{one.sheet}!{cell_name(one.cell)}" for at, one in enumerate(problem.targets) if at not in right
    ]
    info = {
        "right": len(right),
        "of": len(problem.targets),
        "without a formula": typed,
        "right here but not on other data": at_first - len(right),
        "first missed": missed[:_SHOWN],
    }
    parts = _parts(problem.targets, right)
    return EvaluationResult(len(right) / len(problem.targets), not missed, parts, info)


def _right(targets: Sequence[Target], among: set[int], book: Book) -> set[int]:
    computed = Recalculation(book)
    return {
        at
        for at in among
        if agrees(computed.value(targets[at].sheet, targets[at].cell), targets[at].expected)
    }


def _overlaid(book: Book, written: dict[tuple[str, Cell], Value]) -> Book:
    for (sheet, cell), value in written.items():
        book.sheets.setdefault(sheet, {})[cell] = value
    return book


def _parts(targets: Sequence[Target], right: set[int]) -> tuple[SubScore, ...]:
    sizes = Counter(one.part for one in targets)
    hits = Counter(targets[at].part for at in right)
    return tuple(SubScore(part, hits[part] / size, size / len(targets)) for part, size in sizes.items())


def _grade_table(table: Table, book: Book) -> EvaluationResult:
    computed = Recalculation(book)
    places = sorted({row for row, _ in book.sheets[table.sheet] if row > 1})
    columns = {column for row, column in book.sheets[table.sheet] if row > 1}
    width = max(len(table.rows[0]), max(columns, default=0))
    rows = [
        tuple(_plain(computed.value(table.sheet, (row, column))) for column in range(1, width + 1))
        for row in places
    ]
    missing = (None,) * (width - len(table.rows[0]))
    asked = Counter((*map(_plain, row), *missing) for row in table.rows)
    hits = (asked & Counter(rows)).total()
    is_dump = len(rows) > MAX_ROWS_SHARE * asked.total()
    found = 0.0 if is_dump else hits / asked.total()
    exact = 0.0 if is_dump or not rows else hits / len(rows)
    score = min(found, exact)
    info = {"right rows": hits, "rows asked for": asked.total(), "rows written": len(rows)}
    # The weight says which of the two the reward is: the smaller one.
    parts = (
        SubScore("rows found", found, float(found <= exact)),
        SubScore("rows right", exact, float(exact < found)),
    )
    return EvaluationResult(score, score == 1.0, parts, info)


def _plain(value: Value) -> Value:
    """A form in which equal cells are equal."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    return round(float(value), 6)
