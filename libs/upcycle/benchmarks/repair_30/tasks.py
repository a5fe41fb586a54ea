"""The thirty tasks. They only measure: their split is held_out, and no run trains on them."""

from upcycle import Task, Taskset

from .drawing import NUM_HELD_OUT
from .env import repair
from .naming import named


def _task(number: int) -> Task:
    slug, family = named("held_out", number)
    return repair.task(slug=slug, family=family, number=number)


tasks = Taskset("repair-30", [_task(number) for number in range(NUM_HELD_OUT)], "held_out")
