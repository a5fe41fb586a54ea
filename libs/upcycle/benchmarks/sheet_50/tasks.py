"""The fifty tasks. They only measure: their split is held_out, and no run trains on them."""

from upcycle import Task, Taskset

from .env import NUM_TASKS, drawn, workbook


def _task(number: int) -> Task:
    kind, _ = drawn(number)
    slug = f"{kind.family}-{kind.name.replace(' ', '-')}-{number:02d}"
    return workbook.task(slug=slug, family=kind.family, number=number)


tasks = Taskset("sheet-50", [_task(number) for number in range(NUM_TASKS)], "held_out")
