"""`upcycle check`."""

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json, result_console
from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import UpcycleError
from upcycle.wording import amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from upcycle.checking import CheckFinding, Validation
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
    record: bool = False,
    against: str = "",
    as_json: JsonFlag = False,
) -> int:
    """Play the gold answer and the cheapest cheats of each task of TASKS here, without the platform, and name
    what pays for a cheat, what raises, and what gives the answer away. Exit status 1 when something is found.
    What a play printed is shown with what is found there.

    One play may take 60 s; after three that take longer the rest is not played, and the first line says so.

    :param tasks: a tasks file (.py, .json, .jsonl, .csv).
    :param taskset: one of the tasksets of the file; by default all.
    :param limit: most tasks of a taskset; of more, so many evenly apart.
    :param max_cheat: what a cheat may earn, 0 to 1.
    :param timeout_s: seconds for a taskset; what is left then is not played, and the first line says so.
    :param record: keep what was found with the taskset on the platform, which has to know its tasks.
    :param against: a model of the platform: what it answers most to these tasks is played as a cheat, too,
        and what is recorded says so.
    :param as_json: one JSON line per taskset.
    """
    _require_limits(limit, max_cheat, timeout_s)
    limits = {"max_cheat": max_cheat, "max_tasks": limit, "total_s": timeout_s}
    # a list: what the first taskset lacks is no reason to leave the others out
    attack = _Attack(limits, against, record)
    are_clean = [_is_clean(chosen, as_json, attack) for chosen in _chosen(tasks, taskset)]
    return Exit.OK if all(are_clean) else Exit.FAILED


@dataclass(frozen=True, slots=True)
class _Attack:
    """How graders are attacked. against: a model, or ""; record: keep what is found."""

    limits: "Mapping[str, float]"
    against: str
    record: bool


def _is_clean(chosen: "Taskset", as_json: bool, attack: _Attack) -> bool:
    """Play one taskset and print what was seen."""
    from upcycle.checking import CheckLimits
    from upcycle.checking_apart import validate_apart
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

    if attack.record:
        _require_place(chosen)
    answers = _answers(chosen, attack.against)
    seen = validate_apart(where, chosen.tasks, CheckLimits(**attack.limits), begins, answers)
    _say(chosen, seen, as_json, limits_of(environment))
    if attack.record:
        _keep(chosen, seen, attack.against)
    return seen.is_clean


def _answers(chosen: "Taskset", model: str) -> "Sequence[str]":
    if not model:
        return ()
    from upcycle.cli.kept_checks import frequent_answers

    return asyncio.run(frequent_answers(model, {task.digest for task in chosen.tasks}))


def _require_place(chosen: "Taskset") -> None:
    """Before anything is played for what could not be kept."""
    from upcycle.cli.kept_checks import require_registered

    asyncio.run(require_registered(chosen))


def _keep(chosen: "Taskset", seen: "Validation", model: str) -> None:
    """On the platform; then say what it has of these tasks by now."""
    from upcycle.cli.kept_checks import keep
    from upcycle.cli.taskset_checks import check_lines
    from upcycle.tasks import exact_name

    revision, summary = asyncio.run(keep(chosen, seen, model))
    human().print(f"kept with {exact_name(chosen.name, revision)}, of which is known:", markup=False)
    for line in check_lines(summary):
        human().print(f"  {line}", markup=False, soft_wrap=True)


def _require_limits(limit: int, max_cheat: float, timeout_s: float) -> None:
    if timeout_s <= 0:
        raise UpcycleError(f"--timeout-s is {timeout_s:g}", "give a number of seconds, such as 600")
    if limit < 1:
        raise UpcycleError(f"--limit is {limit}", "give at least 1 task")
    if not 0 <= max_cheat <= 1:
        raise UpcycleError(f"--max-cheat is {max_cheat:g}", "it is a reward from 0 to 1, such as 0.05")


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
        found = {"taskset": taskset.name, **asdict(seen), "spread": seen.spread, "tool_limits": dict(limits)}
        print_json("check", found)
        return
    console = result_console()

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    golds = list(seen.gold.values())
    gold = f"gold answers earn {min(golds):.3g} to {max(golds):.3g}" if golds else "no gold answer graded"
    line(f"{taskset.name}: {_looked_at(seen)}, {gold}, spread {seen.spread:.3g}")
    if cheats := ", ".join(f"{name} {earned:.3g}" for name, earned in seen.cheats.items()):
        line(f"  the best that a cheat earned: {cheats}")
    for name, limit_s in limits.items():
        if limit_s > DEADLINE_S:
            line(f"  tool {name} may take {limit_s:g} s: its runs need an --episode-deadline-s above that")
    for finding in seen.findings:
        line(f"  {finding.kind}: {finding}{_printed(finding)}")
    if seen.is_clean:
        line("  nothing found")


def _printed(finding: "CheckFinding") -> str:
    """What its play printed, as lines below it."""
    return "".join(f"\n    | {row}" for row in terminal_text(finding.printed).splitlines())


def _looked_at(seen: "Validation") -> str:
    """`50 of 200 tasks, evenly apart (--limit 200 plays all), 700 plays`."""
    is_part = seen.num_tasks < seen.num_given
    why = f"stopped: {seen.stopped}" if seen.stopped else f"--limit {seen.num_given} plays all"
    return (
        f"{seen.num_tasks} of {amount(seen.num_given, 'task')}"
        + (f" ({why})" if is_part else "")
        + f", {amount(seen.num_plays, 'play')}"
    )
