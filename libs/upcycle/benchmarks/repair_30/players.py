"""Five scripted players of stated skills: what the benchmark's scores are calibrated on, as long as no
people have played it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .drawing import Broken, drawn

ANCHOR: Final = "scripted-5"
Calls = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Repairer:
    """skill: what it can do, in words. play: its calls of tools for a task, with its own chance."""

    name: str
    skill: str
    play: Callable[[Broken, random.Random], Calls]


def calls_of(player: Repairer, number: int) -> Calls:
    """What a player does in one task; the same each time."""
    return player.play(drawn("held_out", number), random.Random(f"{ANCHOR}/{player.name}/{number}"))


def writes(files: dict[str, str]) -> Calls:
    """A call for each file."""
    return tuple(("write_file", {"path": path, "content": text}) for path, text in files.items())


def _reads(task: Broken, _: random.Random) -> Calls:
    return tuple(("read_file", {"path": path}) for path in task.files)


def _comments(task: Broken, _: random.Random) -> Calls:
    return writes({path: f"{task.files[path]}\n# looks right\n" for path in task.repaired()})


def _half_of_the_time(task: Broken, chance: random.Random) -> Calls:
    return writes(task.repaired()) if chance.random() < 0.5 else _comments(task, chance)


def _the_first(task: Broken, _: random.Random) -> Calls:
    """Everything but the last of several defects."""
    left = task.library.sources(task.defects[1:])
    return writes({path: left[path] for path in task.repaired()})


def _everything(task: Broken, _: random.Random) -> Calls:
    return writes(task.repaired())


PLAYERS: Final = (
    Repairer("reader", "reads every file and writes nothing", _reads),
    Repairer("commenter", "adds a comment to the file that is wrong", _comments),
    Repairer("beginner", "repairs every second repository", _half_of_the_time),
    Repairer("hasty", "repairs the first defect and stops", _the_first),
    Repairer("expert", "repairs everything", _everything),
)
