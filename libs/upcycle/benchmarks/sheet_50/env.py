"""The environment: one workbook, tools to read and write its cells, and a scenario that recomputes it."""

from collections.abc import AsyncGenerator
from typing import Any, Final

from upcycle import Environment
from upcycle.errors import UnknownName
from upcycle.scenario import Reference

from . import tools
from .families import KINDS
from .grading import grade
from .problems import Kind, problem_of
from .reference import reference_calls

env = Environment("sheet-50")
for tool in (
    tools.list_sheets,
    tools.read_cells,
    tools.write_cells,
    tools.fill_formula,
    tools.export_workbook,
    tools.import_workbook,
):
    env.tool()(tool)

NUM_TASKS: Final = 50


@env.scenario("workbook")
async def workbook(number: int) -> AsyncGenerator[Any, Any]:
    """Complete the workbook of one of the fifty tasks."""
    kind, seed = drawn(number)
    problem = problem_of(kind, seed)
    with tools.opened(problem.book()):
        given = f"The workbook has these sheets:\n{tools.list_sheets()}"
        yield f"{problem.text}\n\n{given}\nSay that it is complete when it is."
        yield grade(kind, seed, tools.workbook_left(problem.book()))


@workbook.gold
def completed(number: int) -> Reference:
    """Writes what is asked; for `upcycle check`."""
    return Reference("The workbook is ready.", reference_calls(problem_of(*drawn(number))))


def drawn(number: int) -> tuple[Kind, str]:
    """Kind and seed of a task. Raises UnknownName."""
    if not 0 <= number < NUM_TASKS:
        raise UnknownName(f"sheet-50 has no task {number}", f"its tasks are 0 to {NUM_TASKS - 1}")
    return KINDS[number % len(KINDS)], str(number // len(KINDS))
