"""`upcycle sync tasks`: what is registered under a name becomes what a tasks file has."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.report_text import one_line
from upcycle.cli.taskset_commands import TasksetRefused, diff_lines, read_taskset, refusals, split_word
from upcycle.cli.taskset_diff import Difference, difference
from upcycle.cli.tasksets import load_tasksets, print_leaks
from upcycle.deploying import as_deployed
from upcycle.environment.deployed import DEPLOYED
from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.tasks import Taskset, exact_name
from upcycle.tasks_files import TASKS_FILES
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetResponse

_HERE: Final = tuple(f"tasks{ending}" for ending in TASKS_FILES)
_SHOWN: Final = 20
"""Lines of what changed before a question."""


class UnclearSync(UpcycleError, ValueError):
    """The command does not say which tasks go under which name, or whether; nothing was changed."""

    kind = "unclear_sync"


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What would happen. before: what is registered; None: nothing is."""

    taskset: Taskset
    before: "GetTasksetResponse | None"

    @property
    def is_equal(self) -> bool:
        """The platform has these tasks, of this environment. A task is the same by its digest: other slugs
        alone are no change there."""
        if self.before is None:
            return False
        known, file = self.before.taskset, self.taskset.environment
        where = known.environment.python.path or known.environment.tcp.url
        here = file.path if file.path.startswith(DEPLOYED) else str(Path(file.path).resolve())
        return bool(known.digest == self.taskset.digest and where == (file.url or here))

    @property
    def difference(self) -> Difference:
        """From what is registered to the file."""
        from upcycle.wire import task_to_wire

        before = list(self.before.taskset.tasks) if self.before is not None else []
        return difference(before, [task_to_wire(task) for task in self.taskset])

    @property
    def registered(self) -> str:
        """`name@2`, as it is now."""
        if self.before is None:
            return ""
        return exact_name(self.taskset.name, self.before.taskset.revision)


async def sync_tasks(
    source: str,
    name: str | None = None,
    *,
    taskset: str = "",
    deployed: str = "",
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="")] = False,
    dry_run: bool = False,
    as_json: JsonFlag = False,
) -> int:
    """Register the tasks of a file under NAME, or make them the next revision of it.

    Says what is added, removed and changed, and asks before it changes what is registered. Where the platform
    has the same tasks it does nothing. Runs keep the revision that they were submitted with, and a task that
    is held out stays held out.

    :param source: the tasks file; where it is left out, the one of this folder: upcycle sync tasks NAME.
    :param name: of the taskset on the platform; by default its name in the file.
    :param taskset: which one, where the file defines several.
    :param deployed: source digest that `upcycle deploy` printed: the environment is played as it was sent.
    :param yes: do not ask.
    :param dry_run: say what would change, and change nothing.
    :param as_json: one JSON line `sync`; with it changes need --yes.
    """
    file, registered_name = _places(source, name)
    found = _chosen(file, taskset, registered_name)
    if deployed:
        found = as_deployed(found, deployed)
    async with Platform() as platform:
        plan = SyncPlan(found, await _known(platform, found.name))
        _check_kind(plan)
        if plan.is_equal or dry_run:
            return _say(plan, 0, as_json)
        if plan.before is not None and not yes:
            _ask(plan, as_json)
        return _say(plan, await _register(platform, found), as_json)


def _places(source: str, name: str | None) -> tuple[Path, str]:
    """The file, and the name or "". Raises UnclearSync."""
    words = [word for word in (source, name) if word is not None]
    files = [word for word in words if word.endswith(TASKS_FILES)]
    names = [word for word in words if word not in files]
    if len(files) > 1 or len(names) > 1:
        raise UnclearSync(
            f"{' and '.join(words)}: one tasks file and one name are needed",
            "upcycle sync tasks tasks.py NAME",
        )
    return Path(files[0]) if files else _file_here(), names[0] if names else ""


def _file_here() -> Path:
    found = [name for name in _HERE if Path(name).is_file()]
    if len(found) != 1:
        what = (
            f"this folder has {' and '.join(found)}" if found else f"this folder has no {' or '.join(_HERE)}"
        )
        raise UnclearSync(what, "name the file: upcycle sync tasks FILE NAME")
    return Path(found[0])


def _chosen(file: Path, wanted: str, name: str) -> Taskset:
    """The taskset of the file, under the name that it gets. Raises UnclearSync, and TasksetInvalid for a name
    that is none."""
    if not file.is_file():
        raise UnclearSync(f"there is no file {file}", "name a tasks file")
    defined = load_tasksets(file)
    chosen = wanted or (name if name in defined else "")
    if not chosen and len(defined) == 1:
        chosen = next(iter(defined))
    if chosen not in defined:
        has = ", ".join(defined) or "no taskset"
        raise UnclearSync(f"{file} has {has}", "name one that it has: --taskset NAME")
    found = defined[chosen]
    return Taskset(name or chosen, found.tasks, found.split)


async def _known(platform: Platform, name: str) -> "GetTasksetResponse | None":
    from upcycle.rpc import RemoteNotFound

    try:
        return await read_taskset(platform, name)
    except TasksetRefused as error:
        if isinstance(error.__cause__, RemoteNotFound):
            return None
        raise


def _check_kind(plan: SyncPlan) -> None:
    """Raises TasksetRefused for what no revision may change."""
    if plan.before is None:
        return
    known = plan.before.taskset
    was = (split_word(known.split), known.environment.name)
    now = (plan.taskset.split, plan.taskset.environment.name)
    if was != now:
        raise TasksetRefused(
            f"{plan.registered} has split {was[0]} and environment {was[1]!r}; the file has split {now[0]} "
            f"and environment {now[1]!r}: a revision keeps both",
            "choose another name",
        )


def _ask(plan: SyncPlan, as_json: bool) -> None:
    """Returns when a person says yes. Raises UnclearSync."""
    lines = list(_lines(plan))
    if as_json or not can_ask():
        raise UnclearSync(
            f"{lines[0]}: nothing was changed", "give --yes; --dry-run says all that would change"
        )
    out = human()
    for line in lines[:_SHOWN]:
        out.print(line, markup=False, soft_wrap=True)
    if len(lines) > _SHOWN:
        out.print(f"and {len(lines) - _SHOWN} more")
    out.print(f"change {plan.taskset.name} so? [y/N] ", end="", markup=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UnclearSync("nothing was changed", "answer y, or give --yes")


def can_ask() -> bool:
    """Whether a person reads the question and can answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def _register(platform: Platform, taskset: Taskset) -> int:
    """The revision. What the platform refuses, such as a held-out task as training data, changes nothing."""
    from upcycle.run_client import register_taskset

    with refusals():
        registered = await register_taskset(platform, taskset)
    await print_leaks(registered, taskset)
    return registered.revision


def _lines(plan: SyncPlan) -> Iterator[str]:
    tasks = f"{amount(len(plan.taskset), 'task')}, {plan.taskset.split}"
    if plan.before is None:
        yield f"{plan.taskset.name} is new: {tasks}"
        return
    found = plan.difference
    if not plan.is_equal and plan.before.taskset.digest == plan.taskset.digest:
        yield f"{plan.registered}: the same tasks, of another place: {plan.taskset.environment.path}"
        return
    yield from diff_lines(plan.registered, "the file", found)


def _say(plan: SyncPlan, revision: int, as_json: bool) -> int:
    """revision: that was registered; 0: nothing was."""
    if as_json:
        known = plan.before.taskset.revision if plan.before is not None else 0
        fields = {"name": plan.taskset.name, "is_new": plan.before is None, "is_equal": plan.is_equal}
        changes = plan.difference.to_json()
        print_json(
            "sync", {**fields, "revision": revision or known, "is_registered": bool(revision), **changes}
        )
        return Exit.OK
    if plan.is_equal:
        other = len(plan.difference.renamed)
        some = amount(other, "has another slug", "have other slugs")
        slugs = f"; {some} in the file, which is no change" if other else ""
        print(f"{plan.registered} is the same, {amount(len(plan.taskset), 'task')}{slugs}: nothing to do")
        return Exit.OK
    for line in _lines(plan):
        print(one_line(line, 200))
    if revision:
        print(f"registered as {exact_name(plan.taskset.name, revision)}")
    return Exit.OK
