"""`upcycle check`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, result_console
from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from upcycle.checking import Validation
    from upcycle.tasks import Taskset


async def check(
    tasks: Path, *, taskset: str = "", limit: int = 50, max_cheat: float = 0.05, as_json: JsonFlag = False
) -> int:
    """Play the gold answer and the cheapest cheats of each task of TASKS here, without the platform, and name
    what pays for a cheat, what raises, and what gives the answer away. Exit status 1 when something is found.

    :param tasks: a tasks file (.py, .json, .jsonl, .csv).
    :param taskset: one of the tasksets of the file; by default all.
    :param limit: most tasks of a taskset, its first ones.
    :param max_cheat: what a cheat may earn, 0 to 1.
    :param as_json: one JSON line per taskset.
    """
    from upcycle.cli.tasksets import NO_TASKSET, load_tasksets
    from upcycle.environment import load_environment

    if limit < 1 or not 0 <= max_cheat <= 1:
        raise UpcycleError(
            f"--limit is {limit}, --max-cheat {max_cheat:g}", "at least 1 task, and a reward from 0 to 1"
        )
    found = load_tasksets(tasks)
    if not found:
        raise UpcycleError(f"{tasks} defines no taskset: there is nothing to check", NO_TASKSET)
    if taskset and taskset not in found:
        raise UpcycleError(f"{tasks} has no taskset {taskset!r}", f"it has {', '.join(found)}")
    is_clean = True
    for chosen in [found[taskset]] if taskset else found.values():
        where = chosen.environment
        if not where.path:
            raise UpcycleError(
                f"taskset {chosen.name!r} is of an environment served at {where.url}",
                "check it where its file is",
            )
        environment = load_environment(where.path, where.name)
        seen = await environment.validate(chosen.tasks[:limit], max_cheat=max_cheat)
        _say(chosen, seen, as_json)
        is_clean = is_clean and seen.is_clean
    return Exit.OK if is_clean else Exit.FAILED


def _say(taskset: "Taskset", seen: "Validation", as_json: bool) -> None:
    if as_json:
        row: dict[str, Any] = {
            "kind": "check",
            "taskset": taskset.name,
            **asdict(seen),
            "spread": seen.spread,
        }
        print(json.dumps(row, ensure_ascii=False))
        return
    console = result_console()

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    golds = list(seen.gold.values())
    gold = f"gold answers earn {min(golds):.3g} to {max(golds):.3g}" if golds else "no gold answer"
    line(f"{taskset.name}: {seen.num_tasks} of {len(taskset)} tasks, {gold}, spread {seen.spread:.3g}")
    cheats = ", ".join(f"{name} {earned:.3g}" for name, earned in seen.cheats.items())
    line(f"  the best that a cheat earned: {cheats}")
    for finding in seen.findings:
        line(f"  {finding.kind}: {finding}")
    if seen.is_clean:
        line("  nothing found")
