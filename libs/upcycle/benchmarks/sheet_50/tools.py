"""Tools over one workbook: what agents read, write and fill. An environment registers those that it wants."""

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .book import MAX_TEXT_CHARS, Book, Cell, Value, area_of, cell_name, extent, is_formula
from .errors import WorkbookRefused
from .extra import need_extra
from .files import MAX_FILE_BYTES, read_workbook, workbook_bytes
from .recompute import Recalculation, check_formula

MAX_SHOWN_CELLS: Final = 1_500
MAX_WRITTEN_CELLS: Final = 5_000

_Row = list[str | int | float | bool | None]

# An episode is a process of its own, so its workbook is this module's state: set by the scenario.
_books: list[Book] = []


def list_sheets() -> str:
    """Sheets of the workbook, with the area of each that is in use."""
    return "\n".join(f"{name}: {_used(cells)}" for name, cells in _book().sheets.items())


def read_cells(sheet: str, area: str, formulas: bool = False) -> str:
    """Cells of an area, such as B2 or A1:F20: their values, computed, or with formulas=true what is typed in
    them. One line per row; columns are separated by a bar."""
    cells, asked = _book().sheet(sheet), area_of(area)
    if asked.num_cells > MAX_SHOWN_CELLS:
        raise WorkbookRefused(
            f"{area} has {asked.num_cells:,} cells", f"at most {MAX_SHOWN_CELLS:,} are shown at once"
        )
    computed = Recalculation(_book())
    name = next(one for one, held in _book().sheets.items() if held is cells)

    def shown(cell: Cell) -> str:
        content = cells.get(cell)
        value = content if formulas or not is_formula(content) else computed.value(name, cell)
        return "" if value is None else str(value)

    heads = [cell_name((1, column))[:-1] for column in range(asked.left, asked.right + 1)]
    lines = [" | ".join(["", *heads])]
    for row in range(asked.top, asked.bottom + 1):
        lines.append(
            " | ".join([str(row), *(shown((row, one)) for one in range(asked.left, asked.right + 1))])
        )
    return "\n".join(lines)


def write_cells(sheet: str, start: str, rows: list[_Row]) -> str:
    """Write rows of values, the first one beginning at cell `start`. A text that begins with = is a formula;
    null empties a cell."""
    cells, at = _book().sheet(sheet), area_of(start)
    num_cells = sum(map(len, rows))
    if not 0 < num_cells <= MAX_WRITTEN_CELLS:
        raise WorkbookRefused(
            f"rows hold {num_cells:,} cells", f"1 to {MAX_WRITTEN_CELLS:,} are written at once"
        )
    written: dict[Cell, Value] = {
        (at.top + down, at.left + right): _content(value)
        for down, row in enumerate(rows)
        for right, value in enumerate(row)
    }
    last = (max(row for row, _ in written), max(column for _, column in written))
    area_of(cell_name(last))  # refuses what would lie outside of every sheet
    _write(cells, written)
    return f"{num_cells} cells written, to {cell_name(last)}"


def fill_formula(sheet: str, area: str, formula: str) -> str:
    """Write a formula to the first cell of an area and fill it into the others as a spreadsheet does:
    relative references move with the cell, those with $ stay."""
    cells, asked = _book().sheet(sheet), area_of(area)
    if not is_formula(formula):
        raise WorkbookRefused(f"{formula!r:.80} is no formula", "a formula begins with =")
    if asked.num_cells > MAX_WRITTEN_CELLS:
        raise WorkbookRefused(
            f"{area} has {asked.num_cells:,} cells", f"at most {MAX_WRITTEN_CELLS:,} are filled"
        )
    need_extra()
    from openpyxl.formula.translate import Translator, TranslatorError

    origin = cell_name((asked.top, asked.left))
    _content(formula)
    mover = Translator(formula, origin=origin)
    try:
        moved = {cell: mover.translate_formula(cell_name(cell)) for cell in asked.cells()}
    except TranslatorError as error:
        raise WorkbookRefused(f"{formula!r:.80} cannot be filled into {area}", str(error)) from error
    _write(cells, moved)
    return f"{asked.num_cells} cells filled"


def export_workbook() -> str:
    """The workbook as an .xlsx file, in base64."""
    return base64.b64encode(workbook_bytes(_book())).decode()


def import_workbook(content: str) -> str:
    """Put an .xlsx file, given in base64, in the place of the workbook. Formulas are kept, styles are not."""
    if len(content) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise WorkbookRefused(
            f"content has {len(content):,} characters", f"a file may have {MAX_FILE_BYTES:,} bytes"
        )
    try:
        packed = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WorkbookRefused(
            f"content is not base64: {error}", "encode the bytes of the .xlsx file"
        ) from error
    _books[-1] = read_workbook(packed)
    return list_sheets()


@contextmanager
def opened(book: Book) -> Iterator[None]:
    """The tools work on this workbook. Raises ExtraMissing."""
    need_extra()
    _books.append(book)
    try:
        yield
    finally:
        _books.pop()


def workbook_left(given: Book) -> Book:
    """What the agent's calls made of the workbook; one that differs from what was given went through a file,
    as it would be saved."""
    left = _book()
    return read_workbook(workbook_bytes(left)) if left.differing(given) else left


def _book() -> Book:
    if not _books:
        raise RuntimeError("no workbook is open: start the scenario 'workbook' before calling tools")
    return _books[-1]


def _used(cells: dict[Cell, Value]) -> str:
    last = extent(cells)
    return f"A1:{cell_name(last)}" if last[0] else "empty"


def _content(value: Value) -> Value:
    """What is written for a value. Raises WorkbookRefused for what no cell can hold."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_TEXT_CHARS:
        raise WorkbookRefused(
            f"a text has {len(value):,} characters", f"a cell holds at most {MAX_TEXT_CHARS:,}"
        )
    if not all(one.isprintable() or one in "\n\t" for one in value):
        raise WorkbookRefused(f"{value!r:.80} has characters that no cell can hold", "write plain text")
    if is_formula(value):
        check_formula(value)
    return value or None


def _write(cells: dict[Cell, Value], written: dict[Cell, Value]) -> None:
    for cell, value in written.items():
        if value is None:
            cells.pop(cell, None)
        else:
            cells[cell] = value
