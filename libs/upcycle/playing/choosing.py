"""The one task that a person means by `tasks.py` or `tasks.py:slug`."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from upcycle.playing.errors import PlayRefused
from upcycle.tasks import Task, Taskset
from upcycle.tasks_files import TASKS_FILES

_SUFFIXES: Final = sorted(TASKS_FILES, key=len, reverse=True)  # .jsonl before .json
_SHOWN: Final = 5


def split_source(source: str) -> tuple[Path, str]:
    """(file, slug) of `tasks.py:slug`; the slug is empty where none is named. Raises PlayRefused."""
    path = Path(source)
    if path.suffix in _SUFFIXES and path.is_file():
        return path, ""
    for suffix in _SUFFIXES:
        before, found, slug = source.partition(f"{suffix}:")
        if found:
            return Path(before + suffix), slug
    if path.suffix not in _SUFFIXES:
        raise PlayRefused(
            f"{source!r} is no tasks file", "give tasks.py, or tasks.py:slug (also .json, .jsonl and .csv)"
        )
    return path, ""


def chosen_task(path: Path, tasksets: Iterable[Taskset], slug: str) -> Task:
    """The task of that slug; without one, the first. Raises PlayRefused with the nearest slugs."""
    tasks = [task for taskset in tasksets for task in taskset]
    if not tasks:
        raise PlayRefused(f"{path} declares no task", "make one: scenario.task(argument=…)")
    if not slug:
        return tasks[0]
    by_slug = {task.slug: task for task in tasks}
    if slug in by_slug:
        return by_slug[slug]
    near = difflib.get_close_matches(slug, by_slug, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {_some(list(by_slug))}"
    raise PlayRefused(f"{path} has no task {slug!r}", hint)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
