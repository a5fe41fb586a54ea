"""Five scripted players of stated skills: what the benchmark's scores are calibrated on, as long as no
people have played it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from .book import is_formula
from .env import drawn
from .problems import Problem, problem_of
from .recompute import FormulaError, values_of
from .reference import Calls, reference_calls

ANCHOR: Final = "scripted-5"


@dataclass(frozen=True, slots=True)
class Player:
    """skill: what it can do, in words. play: its calls of tools for a problem, with its own chance."""

    name: str
    skill: str
    play: Callable[[Problem, random.Random], Calls]


def calls_of(player: Player, number: int) -> Calls:
    """What a player does in one task; the same each time."""
    problem = problem_of(*drawn(number))
    return player.play(problem, random.Random(f"{ANCHOR}/{player.name}/{number}"))


def _reads(problem: Problem, _: random.Random) -> Calls:
    return tuple(("read_cells", {"sheet": name, "area": "A1:F20"}) for name in problem.sheets)


def _types_values(problem: Problem, chance: random.Random) -> Calls:
    """The values of the formulas; of a list the half of the rows."""
    if problem.table is not None:
        return _slips(problem, chance, 0.5)
    solved = problem.book()
    for one in problem.targets:
        solved.sheets[one.sheet][one.cell] = one.formula
    values = values_of(solved, [(one.sheet, one.cell) for one in problem.targets])
    typed = tuple(
        replace(one, formula=None if isinstance(value, FormulaError) else value)
        for one, value in zip(problem.targets, values, strict=True)
    )
    return reference_calls(replace(problem, targets=typed))


def _first_column(problem: Problem, chance: random.Random) -> Calls:
    """The first thing asked for, and of a list seven rows in ten."""
    if problem.table is not None:
        return _slips(problem, chance, 0.3)
    part = problem.targets[0].part
    return reference_calls(
        replace(problem, targets=tuple(one for one in problem.targets if one.part == part))
    )


def _careful(problem: Problem, chance: random.Random) -> Calls:
    return _slips(problem, chance, 0.1)


def _expert(problem: Problem, _: random.Random) -> Calls:
    return reference_calls(problem)


def _slips(problem: Problem, chance: random.Random, share: float) -> Calls:
    """The reference, with a share of its cells or rows wrong."""
    return tuple(
        (name, {**given, "rows": _spoiled(given["rows"], chance, share)})
        for name, given in reference_calls(problem)
    )


def _spoiled(rows: list[list[Any]], chance: random.Random, share: float) -> list[list[Any]]:
    return [[*row[:-1], _wrong(row[-1])] if chance.random() < share else row for row in rows]


def _wrong(value: Any) -> Any:
    if is_formula(value):
        return f'{value}&"?"'
    return value + 1 if isinstance(value, int | float) else f"{value} "


PLAYERS: Final = (
    Player("reader", "looks at every sheet and writes nothing", _reads),
    Player(
        "typist",
        "types values where formulas are asked for, and gets half of a list's rows right",
        _types_values,
    ),
    Player(
        "beginner",
        "writes the first column of formulas, and gets seven rows of a list in ten right",
        _first_column,
    ),
    Player("careful", "gets nine cells or rows in ten right", _careful),
    Player("expert", "gets everything right", _expert),
)
