"""What solves a task: calls of the environment's tools."""

from itertools import groupby
from typing import Any

from .book import cell_name
from .problems import Problem

Calls = tuple[tuple[str, dict[str, Any]], ...]


def reference_calls(problem: Problem) -> Calls:
    """One call for each column of targets, or one for the table."""
    if problem.table is not None:
        rows = [list(row) for row in problem.table.rows]
        return (("write_cells", {"sheet": problem.table.sheet, "start": "A2", "rows": rows}),)
    calls = []
    ordered = sorted(problem.targets, key=lambda one: (one.sheet, one.cell[1], one.cell[0]))
    for (sheet, _), column in groupby(ordered, key=lambda one: (one.sheet, one.cell[1])):
        cells = list(column)
        rows = [[one.formula] for one in cells]
        calls.append(("write_cells", {"sheet": sheet, "start": cell_name(cells[0].cell), "rows": rows}))
    return tuple(calls)
