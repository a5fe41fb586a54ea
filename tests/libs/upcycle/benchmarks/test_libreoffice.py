"""LibreOffice computes the reference solutions of sheet-50 as the package `formulas` does.

Needs the Debian package libreoffice-calc-nogui; skipped by name where it is absent.
"""

import io
import shutil
import subprocess
from pathlib import Path

import pytest
from openpyxl import load_workbook

from upcycle.benchmarks.sheet_50 import tools
from upcycle.benchmarks.sheet_50.book import Book, Cell, Value, cell_name, is_formula
from upcycle.benchmarks.sheet_50.env import NUM_TASKS, drawn
from upcycle.benchmarks.sheet_50.files import workbook_bytes
from upcycle.benchmarks.sheet_50.grading import agrees
from upcycle.benchmarks.sheet_50.problems import problem_of
from upcycle.benchmarks.sheet_50.recompute import values_of
from upcycle.benchmarks.sheet_50.reference import reference_calls

PROGRAM = shutil.which("soffice")
LIMIT_S = 1200.0


@pytest.mark.timeout(1500)
@pytest.mark.skipif(PROGRAM is None, reason="LibreOffice is absent: apt-get install libreoffice-calc-nogui")
def test_libreoffice_computes_every_reference_solution_alike(tmp_path: Path) -> None:
    books = {number: solved(number) for number in range(NUM_TASKS)}
    for number, book in books.items():
        (tmp_path / f"{number}.xlsx").write_bytes(workbook_bytes(book))
    recalculated = recalculate(tmp_path)
    differing, compared = [], 0
    for number, book in books.items():
        cells = formulas_of(book)
        ours = values_of(book, cells)
        for (sheet, cell), value in zip(cells, ours, strict=True):
            theirs = recalculated[number][sheet, cell]
            compared += 1
            if not agrees(theirs, value):
                differing.append(
                    f"task {number}, {sheet}!{cell_name(cell)}: {value!r}, LibreOffice {theirs!r}"
                )
    assert compared > 900
    assert differing == []


def solved(number: int) -> Book:
    """The workbook of a task after its reference solution."""
    problem = problem_of(*drawn(number))
    with tools.opened(problem.book()):
        for name, arguments in reference_calls(problem):
            getattr(tools, name)(**arguments)
        return tools.workbook_left(problem.book())


def formulas_of(book: Book) -> list[tuple[str, Cell]]:
    return [
        (name, cell) for name in book.sheets for cell, value in book.sheet(name).items() if is_formula(value)
    ]


def recalculate(folder: Path) -> dict[int, dict[tuple[str, Cell], Value]]:
    """Values by sheet and cell of each NUMBER.xlsx. The files have none for formulas, so it computes them."""
    assert PROGRAM is not None
    out = folder / "out"
    profile = f"-env:UserInstallation={(folder / 'profile').as_uri()}"
    files = sorted(map(str, folder.glob("*.xlsx")))
    command = [PROGRAM, profile, "--headless", "--convert-to", "xlsx", "--outdir", str(out), *files]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
    return {int(path.stem): _values(path) for path in out.glob("*.xlsx")}


def _values(path: Path) -> dict[tuple[str, Cell], Value]:
    found: dict[tuple[str, Cell], Value] = {}
    for sheet in load_workbook(io.BytesIO(path.read_bytes()), data_only=True):
        for row in sheet.iter_rows():
            for one in row:
                value = one.value
                known = value is None or isinstance(value, bool | int | float | str)
                found[sheet.title, (one.row, one.column)] = value if known else str(value)
    return found
