"""Five scripted players of stated skills: what the benchmark's scores are calibrated on, as long as no
people have played it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .env import drawn
from .problems import Calls, ComputerProblem, Deed

ANCHOR: Final = "scripted-5"


@dataclass(frozen=True, slots=True)
class Worker:
    """skill: what it can do, in words. does: which of the reference's deeds, with its own chance."""

    name: str
    skill: str
    does: Callable[[list[Deed], random.Random], list[Deed]]


def calls_of(player: Worker, number: int) -> Calls:
    """What a player does in one task; the same each time."""
    problem = drawn(number)
    chosen = player.does(_acting(problem), random.Random(f"{ANCHOR}/{player.name}/{number}"))
    kept = [deed for deed in problem.deeds if not deed.changes or deed in chosen]
    return tuple(call for deed in kept for call in deed.calls)


def _acting(problem: ComputerProblem) -> list[Deed]:
    return [deed for deed in problem.deeds if deed.changes]


def _some(share: float) -> Callable[[list[Deed], random.Random], list[Deed]]:
    return lambda deeds, chance: [deed for deed in deeds if chance.random() < share]


PLAYERS: Final = (
    Worker("reader", "reads everything and changes nothing", lambda deeds, _: []),
    Worker("starter", "does the first thing and stops", lambda deeds, _: deeds[:1]),
    Worker("beginner", "does every second thing", _some(0.5)),
    Worker("careful", "does nine things in ten", _some(0.9)),
    Worker("expert", "does everything", lambda deeds, _: deeds),
)
