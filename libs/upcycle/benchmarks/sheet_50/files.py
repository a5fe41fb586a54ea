"""Workbooks as .xlsx files, read within limits. openpyxl is imported where it is needed and not before."""

import datetime
import io
import re
import zipfile
from typing import Any, Final

from .book import MAX_COLUMNS, MAX_ROWS, Book, Value, cell_name, is_formula
from .errors import WorkbookRefused
from .extra import need_extra

MAX_FILE_BYTES: Final = 8 << 20
MAX_UNPACKED_BYTES: Final = 32 << 20
MAX_SHEETS: Final = 20
_LATER: Final = frozenset({"CONCAT", "IFNA", "IFS", "MAXIFS", "MINIFS", "SWITCH", "XLOOKUP"})
"""Functions that are younger than the format: a file has _PREFIX before them, as programs expect."""
_PREFIX: Final = "_xlfn."


def workbook_bytes(book: Book) -> bytes:
    """The .xlsx file of a workbook."""
    need_extra()
    from openpyxl import Workbook

    made = Workbook()
    made.remove(made.worksheets[0])
    for name, cells in book.sheets.items():
        sheet = made.create_sheet(name)
        for (row, column), value in cells.items():
            sheet.cell(row, column, _in_file(value))
    packed = io.BytesIO()
    made.save(packed)
    return packed.getvalue()


def _in_file(value: Value) -> Value:
    """A formula as files have it."""
    if not is_formula(value):
        return value
    from openpyxl.formula import Tokenizer
    from openpyxl.formula.tokenizer import Token

    found = Tokenizer(str(value)).items
    names = {one.value for one in found if one.type == Token.FUNC and one.subtype == Token.OPEN}
    later = {name for name in names if name.rstrip("(").upper() in _LATER}
    return "=" + "".join(f"{_PREFIX}{one.value}" if one.value in later else one.value for one in found)


def read_workbook(content: bytes) -> Book:
    """The workbook in the bytes of an .xlsx file: values and formulas, no styles. Raises WorkbookRefused."""
    _check_size(content)
    need_extra()
    from openpyxl import load_workbook

    try:
        loaded = load_workbook(io.BytesIO(content), keep_links=False)
    except Exception as error:
        raise _no_workbook(f"{type(error).__name__}: {error}") from error
    if not 0 < len(loaded.worksheets) <= MAX_SHEETS:
        raise WorkbookRefused(
            f"the workbook has {len(loaded.worksheets)} sheets", f"1 to {MAX_SHEETS} are read"
        )
    return Book({sheet.title: _cells(sheet) for sheet in loaded.worksheets})


def _check_size(content: bytes) -> None:
    """Looks at the file without unpacking it."""
    if len(content) > MAX_FILE_BYTES:
        raise WorkbookRefused(
            f"the workbook's file has {len(content):,} bytes", f"at most {MAX_FILE_BYTES:,} are read"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(row.file_size for row in archive.infolist())
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise _no_workbook(str(error)) from error
    if unpacked > MAX_UNPACKED_BYTES:
        raise WorkbookRefused(
            f"the workbook unpacks to {unpacked:,} bytes", f"at most {MAX_UNPACKED_BYTES:,} are read"
        )


def _no_workbook(why: str) -> WorkbookRefused:
    return WorkbookRefused(
        f"this is no .xlsx workbook ({why:.160})", "save it as .xlsx, not as .xls, .csv or .ods"
    )


def _cells(sheet: Any) -> dict[tuple[int, int], Value]:
    found: dict[tuple[int, int], Value] = {}
    for (row, column), cell in sheet._cells.items():  # only cells that are there: a sheet has 17 billion
        value = _value(cell.value)
        if value is None:
            continue
        if row > MAX_ROWS or column > MAX_COLUMNS:
            raise WorkbookRefused(
                f"sheet {sheet.title!r:.80} uses cell {cell_name((row, column))}",
                f"a sheet has cells A1 to {cell_name((MAX_ROWS, MAX_COLUMNS))}",
            )
        found[row, column] = value
    return found


def _value(value: Any) -> Value:
    if is_formula(value):
        return re.sub(re.escape(_PREFIX), "", str(value), flags=re.IGNORECASE)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    return str(getattr(value, "text", value))
