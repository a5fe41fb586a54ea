"""What the cells of a workbook compute to: formulas are compiled by the package `formulas`, one by one.

A formula may use the functions in FUNCTIONS and no other: those whose value depends on the cells alone, and
that the package computes as spreadsheet programs do. An error is a value, such as #N/A. Circular references
are #REF!. The package is imported by the first formula that is computed, which takes about a second.
"""

import datetime
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from .book import (
    MAX_COLUMNS,
    MAX_FORMULA_CHARS,
    MAX_ROWS,
    MAX_TEXT_CHARS,
    Area,
    Book,
    Cell,
    Value,
    column_number,
    extent,
    is_formula,
)
from .errors import WorkbookRefused
from .extra import need_extra

_COMPUTED: Final = """
ABS AND AVERAGE AVERAGEIF AVERAGEIFS CHOOSE CONCAT CONCATENATE COUNT COUNTA COUNTBLANK COUNTIF COUNTIFS DATE
DATEVALUE DAY EDATE EOMONTH EXACT FALSE FIND HLOOKUP IF IFERROR IFNA IFS INDEX INT ISBLANK ISERROR ISNA
ISNUMBER ISTEXT LARGE LEFT LEN LOOKUP LOWER MATCH MAX MAXIFS MEDIAN MID MIN MINIFS MOD MONTH NOT OR PRODUCT
PROPER RANK RIGHT ROUND ROUNDDOWN ROUNDUP SEARCH SMALL SQRT STDEV SUBSTITUTE SUM SUMIF SUMIFS SUMPRODUCT
SWITCH TEXT TRIM TRUE UPPER VALUE VLOOKUP WEEKDAY XLOOKUP YEAR
"""
FUNCTIONS: Final = frozenset(_COMPUTED.split())
_EPOCH: Final = datetime.date(1899, 12, 30)
_REFERENCE: Final = re.compile(
    r"(?:'((?:[^']|'')+)'!|([^'!]+)!)?(?:([A-Z]{1,3})([0-9]{1,7})(?::([A-Z]{1,3})([0-9]{1,7}))?"
    r"|([A-Z]{1,3}):([A-Z]{1,3}))"
)
_At = tuple[str, Cell]


class FormulaError(str):
    """The value of a cell whose formula fails, such as #DIV/0!."""


class _Compiled:
    """A formula: the references that it reads, and the function of their values."""

    def __init__(self, function: Callable[..., Any], references: Sequence[str]) -> None:
        self.function = function
        self.references = tuple(references)


def check_formula(formula: str) -> None:
    """Raises WorkbookRefused, saying why, for a formula that cannot be computed here."""
    _compiled(formula)


class Recalculation:
    """Values of the cells of one workbook, each computed once. The workbook must not change meanwhile."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._names = {name.casefold(): name for name in book.sheets}
        self._extents = {name: extent(cells) for name, cells in book.sheets.items()}
        self._values: dict[_At, Any] = {}

    def value(self, sheet: str, cell: Cell) -> Value:
        """What a spreadsheet program would show in the cell, as a value."""
        name = self._names[sheet.casefold()]
        self._settle((name, cell))
        return _plain(self._values[name, cell])

    def _settle(self, wanted: _At) -> None:
        """Computes what the cell needs, then the cell; without recursion, for chains of any length."""
        waiting, begun = [wanted], set[_At]()
        while waiting:
            at = waiting[-1]
            if at in self._values:
                waiting.pop()
                continue
            content = self._content(at)
            missing = self._missing(content, at[0]) if at not in begun else []
            begun.add(at)
            if any(one in begun for one in missing):
                self._values[at] = FormulaError("#REF!")
            elif missing:
                waiting += missing
            else:
                self._values[at] = self._computed(content, at[0])

    def _content(self, at: _At) -> Value:
        return self._book.sheets[at[0]].get(at[1])

    def _missing(self, content: Value, sheet: str) -> list[_At]:
        """Formula cells that this content reads and that have no value yet."""
        found: dict[_At, None] = {}
        for name, area in self._read_by(content, sheet):
            cells = self._book.sheets[name]
            for cell in area.cells():
                if (name, cell) not in self._values and is_formula(cells.get(cell)):
                    found[name, cell] = None
        return list(found)

    def _read_by(self, content: Value, sheet: str) -> list[tuple[str, Area]]:
        if not is_formula(content):
            return []
        try:
            return [self._resolved(one, sheet) for one in _compiled(str(content)).references]
        except (WorkbookRefused, LookupError):
            return []

    def _computed(self, content: Value, sheet: str) -> Any:
        if not is_formula(content):
            return content
        try:
            compiled = _compiled(str(content))
            inputs = [self._array(*self._resolved(one, sheet)) for one in compiled.references]
        except LookupError:
            return FormulaError("#REF!")
        except WorkbookRefused:
            return FormulaError("#NAME?")
        try:
            return _first(compiled.function(*inputs))
        except Exception:  # of the foreign package, for arguments that make no sense
            return FormulaError("#VALUE!")

    def _resolved(self, reference: str, sheet: str) -> tuple[str, Area]:
        """Raises LookupError for a sheet or a cell that is not there."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            raise LookupError(reference)
        given = (match[1] or match[2] or sheet).replace("''", "'")
        name = self._names[given.casefold()]
        if match[7]:
            area = Area(1, column_number(match[7]), max(1, self._extents[name][0]), column_number(match[8]))
        else:
            top, left = int(match[4]), column_number(match[3])
            right, bottom = (column_number(match[5]), int(match[6])) if match[5] else (left, top)
            area = Area(min(top, bottom), min(left, right), max(top, bottom), max(left, right))
        if area.top < 1 or area.bottom > MAX_ROWS or area.right > MAX_COLUMNS:
            raise LookupError(reference)
        return name, area

    def _array(self, name: str, area: Area) -> Any:
        import numpy as np
        from schedula import EMPTY

        cells, values = self._book.sheets[name], self._values
        made = np.empty((area.bottom - area.top + 1, area.right - area.left + 1), object)
        for row, column in area.cells():
            at = (row, column)
            found = values[name, at] if (name, at) in values else cells.get(at)
            made[row - area.top, column - area.left] = EMPTY if found is None else _foreign(found)
        return made


@lru_cache(maxsize=4096)
def _compiled(formula: str) -> _Compiled:
    """Raises WorkbookRefused."""
    need_extra()
    if len(formula) > MAX_FORMULA_CHARS:
        raise WorkbookRefused(
            f"a formula has {len(formula):,} characters", f"at most {MAX_FORMULA_CHARS:,} are computed"
        )
    _check_functions(formula)
    # The arrays are small, and an episode's process has few threads to spare.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of the package's own code
        from formulas.parser import Parser

    try:
        function = Parser().ast(formula)[1].compile()
        return _Compiled(function, list(function.inputs))
    except Exception as error:
        raise WorkbookRefused(
            f"{formula!r:.120} is no formula that can be computed", "look at its brackets, commas and quotes"
        ) from error


def _check_functions(formula: str) -> None:
    from openpyxl.formula import Tokenizer
    from openpyxl.formula.tokenizer import Token, TokenizerError

    try:
        tokens = Tokenizer(formula).items
    except (TokenizerError, IndexError, KeyError) as error:
        raise WorkbookRefused(f"{formula!r:.120} is no formula", f"it ends too early: {error}") from error
    used = [one.value for one in tokens if one.type == Token.FUNC and one.subtype == Token.OPEN]
    for name in used:
        plain = name.rstrip("(").upper().removeprefix("_XLFN.")
        if plain not in FUNCTIONS:
            raise WorkbookRefused(
                f"function {plain:.40} is not computed here", f"these are: {', '.join(sorted(FUNCTIONS))}"
            )


def _first(result: Any) -> Any:
    """The value of a result; of several its first, which is what the formula's own cell shows."""
    import numpy as np
    from schedula import EMPTY

    array = np.asarray(result, object)
    value = array.flat[0] if array.size else FormulaError("#VALUE!")
    if value is EMPTY:
        return 0
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return FormulaError("#NUM!")
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        return FormulaError("#VALUE!")
    return value


def _foreign(value: Any) -> Any:
    """A value as the package takes it."""
    if isinstance(value, FormulaError):
        from formulas.tokens.operand import Error

        return Error.errors[str(value)]
    if isinstance(value, datetime.date):
        return float((value - _EPOCH).days)
    return value


def _plain(value: Any) -> Value:
    """A value as we have it: errors of the package become FormulaError, dates stay what they are."""
    if value is None or type(value) is str or isinstance(value, bool | int | float | datetime.date):
        return value
    return FormulaError(str(value))


def serial(day: datetime.date) -> int:
    """The number that a spreadsheet has for a day."""
    return (day - _EPOCH).days


def values_of(book: Book, wanted: Iterable[_At]) -> list[Value]:
    """The values of several cells."""
    computed = Recalculation(book)
    return [computed.value(sheet, cell) for sheet, cell in wanted]
