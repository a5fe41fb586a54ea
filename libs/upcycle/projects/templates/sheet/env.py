"""The environment: a workbook, tools to read and fill its cells, and a scenario that recomputes it."""

from collections.abc import AsyncGenerator
from typing import Any, Literal

from upcycle import Environment
from upcycle.benchmarks.sheet_50.families import KINDS
from upcycle.benchmarks.sheet_50.grading import grade
from upcycle.benchmarks.sheet_50.one_column import SMALL_KINDS, fill_calls
from upcycle.benchmarks.sheet_50.problems import Kind, problem_of
from upcycle.benchmarks.sheet_50.recompute import check_formula
from upcycle.benchmarks.sheet_50.reference import reference_calls
from upcycle.benchmarks.sheet_50.tools import (
    fill_formula,
    list_sheets,
    opened,
    read_cells,
    workbook_left,
    write_cells,
)
from upcycle.scenario import Reference

Split = Literal["train", "held_out"]
Size = Literal["column", "workbook"]
"""column: one column of formulas, which one call fills in; workbook: all that a task of sheet-50 asks for."""

# Loads the package that computes formulas, which takes a second: here once, and not in each episode.
check_formula("=SUM(A1:A2)")

env = Environment("my-agent")
for tool in (read_cells, fill_formula, write_cells):
    env.tool()(tool)


@env.scenario("complete")
async def complete(size: Size, split: Split, seed: int) -> AsyncGenerator[Any, Any]:
    """Complete the workbook of a seed; the reward: the share of cells that is right, on other data too."""
    kind, name = drawn(size, split, seed)
    problem = problem_of(kind, name)
    with opened(problem.book()):
        yield f"{problem.text}\nSheets:\n{list_sheets()}\nFinish with a short answer."
        yield grade(kind, name, workbook_left(problem.book()))


@complete.gold
def completed(size: Size, split: Split, seed: int) -> Reference:
    """Writes what is asked; for `upcycle check` and the reference player."""
    problem = problem_of(*drawn(size, split, seed))
    return Reference("Done", fill_calls(problem) if size == "column" else reference_calls(problem))


def drawn(size: Size, split: Split, seed: int) -> tuple[Kind, str]:
    """Sort of task and its seed; sorts take turns. The seeds of the benchmark sheet-50 are numbers alone, so
    none of its workbooks is drawn here."""
    kinds = SMALL_KINDS if size == "column" else KINDS
    return kinds[seed % len(kinds)], f"{split}/{seed // len(kinds)}"
