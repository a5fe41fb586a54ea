"""`upcycle check`."""

import asyncio
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, result_console
from upcycle.errors import UpcycleError
from upcycle.wording import amount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from upcycle.checking import Validation
    from upcycle.tasks import Taskset

DEADLINE_S: Final = 120
"""Of an episode, where its run says no other."""


def check(
    tasks: Path,
    *,
    taskset: str = "",
    limit: int = 50,
    max_cheat: float = 0.05,
    timeout_s: float = 600.0,
    as_json: JsonFlag = False,
) -> int:
    """Play the gold answer and the cheapest cheats of each task of TASKS here, without the platform, and name
    what pays for a cheat, what raises, and what gives the answer away. Exit status 1 when something is found.
    What scenarios and tools print goes to standard error.

    One play may take 60 s; after three that take longer the rest is not played, and the first line says so.

    :param tasks: a tasks file (.py, .json, .jsonl, .csv).
    :param taskset: one of the tasksets of the file; by default all.
    :param limit: most tasks of a taskset; of more, so many evenly apart.
    :param max_cheat: what a cheat may earn, 0 to 1.
    :param timeout_s: seconds for a taskset; what is left then is not played, and the first line says so.
    :param as_json: one JSON line per taskset.
    """
    _require_limits(limit, max_cheat, timeout_s)
    limits = {"max_cheat": max_cheat, "max_tasks": limit, "total_s": timeout_s}
    # a list: what the first taskset lacks is no reason to leave the others out
    are_clean = [_is_clean(chosen, as_json, limits) for chosen in _chosen(tasks, taskset)]
    return Exit.OK if all(are_clean) else Exit.FAILED


def _is_clean(chosen: "Taskset", as_json: bool, limits: "Mapping[str, float]") -> bool:
    """Play one taskset and print what was seen."""
    from upcycle.cli.live_view import PolledLines
    from upcycle.cli.tool_limits import limits_of
    from upcycle.environment import load_environment

    where, lines = chosen.environment, PolledLines(human())
    if not where.path:
        raise UpcycleError(
            f"taskset {chosen.name!r} is of an environment served at {where.url}",
            "check it where its file is",
        )
    environment = load_environment(where.path, where.name)

    def begins(number: int, count: int, slug: str) -> None:
        lines.show(f"checking {slug}, {number} of {count}")

    checked = environment.validate(chosen.tasks, on_task=begins, **limits)
    with redirect_stdout(sys.stderr):
        seen = asyncio.run(checked)  # not earlier: a tasks file may have a loop of its own
    _say(chosen, seen, as_json, limits_of(environment))
    return seen.is_clean


def _require_limits(limit: int, max_cheat: float, timeout_s: float) -> None:
    if timeout_s <= 0:
        raise UpcycleError(f"--timeout-s is {timeout_s:g}", "give a number of seconds, such as 600")
    if limit < 1 or not 0 <= max_cheat <= 1:
        raise UpcycleError(
            f"--limit is {limit}, --max-cheat {max_cheat:g}", "at least 1 task, and a reward from 0 to 1"
        )


def _chosen(tasks: Path, taskset: str) -> "list[Taskset]":
    """The named taskset of a file, or all. Raises UpcycleError for none."""
    from upcycle.cli.tasksets import NO_TASKSET, load_tasksets

    found = load_tasksets(tasks)
    if not found:
        raise UpcycleError(f"{tasks} defines no taskset: there is nothing to check", NO_TASKSET)
    if taskset and taskset not in found:
        raise UpcycleError(f"{tasks} has no taskset {taskset!r}", f"it has {', '.join(found)}")
    return [found[taskset]] if taskset else list(found.values())


def _say(taskset: "Taskset", seen: "Validation", as_json: bool, limits: "Mapping[str, float]") -> None:
    """limits: of the tools that say how long a call may take."""
    if as_json:
        row: dict[str, Any] = {
            "kind": "check",
            "taskset": taskset.name,
            **asdict(seen),
            "spread": seen.spread,
            "tool_limits": dict(limits),
        }
        print(json.dumps(row, ensure_ascii=False))
        return
    console = result_console()

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    golds = list(seen.gold.values())
    gold = f"gold answers earn {min(golds):.3g} to {max(golds):.3g}" if golds else "no gold answer"
    line(f"{taskset.name}: {_looked_at(seen)}, {gold}, spread {seen.spread:.3g}")
    cheats = ", ".join(f"{name} {earned:.3g}" for name, earned in seen.cheats.items())
    line(f"  the best that a cheat earned: {cheats}")
    for name, limit_s in limits.items():
        if limit_s > DEADLINE_S:
            line(f"  tool {name} may take {limit_s:g} s: its runs need an --episode-deadline-s above that")
    for finding in seen.findings:
        line(f"  {finding.kind}: {finding}")
    if seen.is_clean:
        line("  nothing found")


def _looked_at(seen: "Validation") -> str:
    """`50 of 200 tasks, evenly apart (--limit 200 plays all), 700 plays`."""
    is_part = seen.num_tasks < seen.num_given
    why = f"stopped: {seen.stopped}" if seen.stopped else f"--limit {seen.num_given} plays all"
    return (
        f"{seen.num_tasks} of {amount(seen.num_given, 'task')}"
        + (f" ({why})" if is_part else "")
        + f", {amount(seen.num_plays, 'play')}"
    )
