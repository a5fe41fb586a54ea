"""The tasks. They only measure: their split is held_out, and no run trains on them."""

from upcycle import Task, Taskset

from .categories import CATEGORIES
from .env import NUM_TASKS, work


def _task(number: int) -> Task:
    name = CATEGORIES[number % len(CATEGORIES)].name
    return work.task(slug=f"{name}-{number:03d}", family=name, number=number)


tasks = Taskset("autonomy-10", [_task(number) for number in range(NUM_TASKS)], "held_out")
