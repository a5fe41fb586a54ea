"""Doors that open for one colour: an environment, and lines of a trajectories file."""

import random
from pathlib import Path
from typing import Any

from tests.libs.reward_models.small_policy import COLOURS, graded

_ENVIRONMENT = """
from upcycle import Environment

env = Environment("doors")


@env.scenario("open")
async def door(number: int):
    answer = yield f"which colour opens door {number}"
    yield 1.0 if answer == "the colour is red" else 0.0
"""
_TASKS = """
from env import door
from upcycle import Taskset

TASKS = Taskset("doors", [door.task(slug=f"door-{n}", number=n) for n in range(3)], "held_out")
"""


def doors(folder: Path) -> Path:
    """The folder, with its tasks."""
    (folder / "env.py").write_text(_ENVIRONMENT)
    (folder / "tasks.py").write_text(_TASKS)
    return folder


def line(task: int, attempt: int, *, split: str = "train") -> dict[str, Any]:
    """A graded episode as a line."""
    colour = random.Random(f"{task}/{attempt}").choice(COLOURS)
    success = colour == "red"
    one = graded("", "", colour, success, door=task)
    return {
        "format": "upcycle-trajectory/1",
        "task": {"slug": f"door-{task}", "digest": f"{task:064}", "split": split},
        "messages": one.conversation.messages,
        "turns": [],
        "reward": float(success),
        "success": success,
    }
