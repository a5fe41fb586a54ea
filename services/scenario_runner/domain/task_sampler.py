"""Which tasks a training run draws by what their groups taught it, instead of each once per epoch. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.run_config.names import AGE

LOOK_BACK_EPOCHS: Final = 8
"""As many epochs of groups count: a task that was too hard may be learned by now."""
_LEAST: Final = 0.05
"""No task is given up: the policy that could not solve it was an older one."""

_AGAIN: Final = 0.25


@dataclass(frozen=True, slots=True)
class TaskPast:
    """What came of a task's groups. newest: position of the last one in the run."""

    trained: int = 0
    flat: int = 0
    newest: int = -1


def draw_tasks(sampler: str, seed: int, past: Sequence[TaskPast], positions: Sequence[int]) -> list[int]:
    """Index of the task of each group at these positions; the same for the same past. past: of each task, in
    the newest epochs.

    Of groups that are planned together nothing is known yet, so each makes its task a quarter as likely.
    """
    weights = [_weight(sampler, one, positions[0]) for one in past]
    draws = random.Random(f"{seed}/{sampler}/{positions[0]}")  # noqa: S311 - an order of tasks, no secret
    chosen: list[int] = []
    for _ in positions:
        (task,) = draws.choices(range(len(past)), weights)
        chosen.append(task)
        weights[task] *= _AGAIN
    return chosen


def _weight(sampler: str, past: TaskPast, position: int) -> float:
    """By spread: how likely a group of the task has one, from a uniform prior. By age: groups of the run
    since its last one."""
    if sampler == AGE:
        return float(position - past.newest)
    return max(_LEAST, (1 + past.trained) / (2 + past.trained + past.flat))


def added(past: Mapping[int, TaskPast], task: int, *, trained: int, flat: int, newest: int) -> TaskPast:
    """The past of a task with some more of its groups."""
    before = past.get(task, TaskPast())
    return TaskPast(before.trained + trained, before.flat + flat, max(before.newest, newest))
