"""The new tasks that a run had made, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import NewTasks, Run


def new_tasks_line(run: "Run") -> str:
    """What became of a run's new tasks; "" where it ordered none."""
    return ", ".join(_parts(run.new_tasks, run.groups)) if run.new_tasks.ordered else ""


def _parts(found: "NewTasks", num_groups: int) -> Iterator[str]:
    yield f"{found.ordered} ordered"
    for name in ("playing", "retired", "duplicate", "held_out", "filtered", "failed"):
        if count := getattr(found, name):
            yield f"{count} {name.replace('_', ' ')}"
    yield f"{found.groups} of {amount(num_groups, 'group')}, {found.trained} trained"
    if found.episodes:
        yield f"success {found.success_rate:.1%} of {amount(found.episodes, 'episode')}"
