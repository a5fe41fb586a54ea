"""The small size of a task: its first column of formulas alone, which one call fills in.

A problem of several columns is cut to the one that is asked for first. Workbook, data and variants stay the
same, so grading is the same, too. Lists that are to be copied row by row have no small size.
"""

import random
from dataclasses import replace
from functools import partial
from typing import Final

from .book import Area, cell_name
from .families import KINDS
from .problems import Kind, Maker, Problem
from .reference import Calls

_KEEP: Final = "Each must be a formula. Leave all other cells as they are."


def one_column(kind: Kind) -> Kind:
    """The same sort of task in its small size."""
    return Kind(kind.family, f"{kind.name}, one column", partial(_first_column, kind.make))


def fill_calls(problem: Problem) -> Calls:
    """What solves a problem of the small size: one formula, filled into the area that is asked for."""
    area, first = area_of_targets(problem), problem.targets[0]
    top, bottom = cell_name((area.top, area.left)), cell_name((area.bottom, area.right))
    return (("fill_formula", {"sheet": first.sheet, "area": f"{top}:{bottom}", "formula": first.formula}),)


def area_of_targets(problem: Problem) -> Area:
    """The block that the targets of a problem of the small size make."""
    rows, columns = zip(*(one.cell for one in problem.targets), strict=True)
    return Area(min(rows), min(columns), max(rows), max(columns))


def _first_column(make: Maker, shape: random.Random, data: random.Random) -> Problem:
    problem = make(shape, data)
    title, *lines = problem.text.splitlines()
    part = problem.targets[0].part
    targets = tuple(one for one in problem.targets if one.part == part)
    asked = next(line for line in lines if line.startswith("- "))
    return replace(problem, text=f"{title}\n{asked}\n{_KEEP}", targets=targets)


SMALL_KINDS: Final = tuple(one_column(kind) for kind in KINDS if kind.family != "cleaning")
