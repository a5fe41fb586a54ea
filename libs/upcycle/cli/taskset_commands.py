"""`upcycle tasksets list|show|diff|delete`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, fields_of, human, print_json
from upcycle.cli.report_text import one_line, table
from upcycle.cli.taskset_checks import check_lines, found_in
from upcycle.cli.taskset_diff import Difference, difference
from upcycle.errors import UpcycleError
from upcycle.platform import Platform
from upcycle.tasks import exact_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetResponse
    from upcycle.api.taskset.v1.taskset_pb2 import TasksetSummary

TIMEOUT_S: Final = 60.0
_COLUMNS: Final = (
    *("taskset", "revision", "tasks", "split", "tasks by side", "source", "registered (UTC)"),
    "found",
)
_DIGEST_CHARS: Final = 12


class TasksetRefused(UpcycleError, LookupError):
    """The platform has no such taskset, or something refers to it: nothing was changed."""

    kind = "taskset_refused"


async def list_tasksets(*, as_json: JsonFlag = False) -> int:
    """The newest revision of every taskset.

    :param as_json: one JSON line per taskset.
    """
    from upcycle.api.taskset.v1.service_pb2 import ListTasksetsRequest

    async with Platform() as platform:
        request = ListTasksetsRequest(with_summaries=True)
        found = (await platform.tasksets.ListTasksets(request, timeout=TIMEOUT_S)).summaries
    if as_json:
        for one in found:
            print_json("taskset", one)
        return Exit.OK
    if not found:
        human().print("no taskset is registered: `upcycle eval tasks.py MODEL` registers what it plays")
        return Exit.OK
    _print([_COLUMNS, *map(_row, found)])
    return Exit.OK


async def show(name: str, *, limit: int = 50, as_json: JsonFlag = False) -> int:
    """Tasks, sides, environment and revisions of NAME.

    :param name: of a taskset, or one of its revisions: `sums@2`.
    :param limit: show at most so many tasks; 0: all.
    :param as_json: everything as one JSON line.
    """
    if limit < 0:
        raise TasksetRefused(f"--limit is {limit}", "give 0 for all tasks, or at least 1")
    async with Platform() as platform:
        found = await read_taskset(platform, name)
    if as_json:
        print_json("taskset", _fields(found))
        return Exit.OK
    taskset = found.taskset
    where = taskset.environment.python.path or taskset.environment.tcp.url
    print(f"{exact_name(taskset.name, taskset.revision)}, digest {taskset.digest[:_DIGEST_CHARS]}")
    print(f"environment {taskset.environment.name}: {where}")
    _print([_COLUMNS[1:], *(_row(one)[1:] for one in found.revisions)])
    for line in check_lines(next(one for one in found.revisions if one.revision == taskset.revision)):
        print(line)
    shown = list(zip(taskset.tasks, found.task_splits, strict=True))
    rows = [
        (
            one_line(task.slug, 60),
            one_line(task.family, 30),
            task.scenario,
            split_word(split),
            task.digest[:12],
        )
        for task, split in (shown[:limit] if limit else shown)
    ]
    _print([("task", "family", "scenario", "side", "digest"), *rows])
    if len(rows) < len(shown):
        print(f"and {amount(len(shown) - len(rows), 'more task')}: --limit 0 shows all")
    return Exit.OK


async def diff(a: str, b: str | None = None, *, as_json: JsonFlag = False) -> int:
    """Tasks that are added, removed, changed or renamed from A to B, by their digests.

    :param a: a taskset or a revision of one; without B its two newest revisions are compared.
    :param b: the later one.
    :param as_json: one JSON line.
    """
    async with Platform() as platform:
        later = await read_taskset(platform, a if b is None else b)
        earlier = await read_taskset(platform, _one_before(later) if b is None else a)
    names = tuple(exact_name(one.taskset.name, one.taskset.revision) for one in (earlier, later))
    found = difference(earlier.taskset.tasks, later.taskset.tasks)
    if as_json:
        print_json("taskset_diff", {"a": names[0], "b": names[1], **found.to_json()})
        return Exit.OK
    for line in diff_lines(names[0], names[1], found):
        print(line)
    return Exit.OK


async def delete(name: str, *, as_json: JsonFlag = False) -> int:
    """Delete NAME with all its revisions, unless a run, a gate or a checkpoint refers to it.

    Which side its tasks are on is kept: a task that was held out stays held out. The same name may be
    registered again; its revisions go on counting.

    :param name: of a taskset.
    :param as_json: one JSON line.
    """
    from upcycle.api.taskset.v1.service_pb2 import DeleteTasksetRequest

    async with Platform() as platform:
        with refusals():
            request = DeleteTasksetRequest(name=name)
            gone = (await platform.tasksets.DeleteTaskset(request, timeout=TIMEOUT_S)).revisions
    if as_json:
        print_json("deleted_taskset", {"name": name, "revisions": [fields_of(one) for one in gone]})
        return Exit.OK
    held_out, audited = gone[-1].splits["held_out"], gone[-1].splits["audit"]
    staying = amount(held_out, "held-out task stays", "held-out tasks stay")
    kept = f"; its {staying} held out" if held_out else ""
    kept += f"; its {amount(audited, 'audit task stays', 'audit tasks stay')} for audits" if audited else ""
    revisions = amount(len(gone), "revision")
    print(f"{name} is deleted: {revisions}, {amount(gone[-1].num_tasks, 'task')} in the newest{kept}")
    return Exit.OK


async def read_taskset(platform: Platform, name: str) -> "GetTasksetResponse":
    """With the side of each task and all revisions. Raises TasksetRefused."""
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest

    request = GetTasksetRequest(name=name, with_summaries=True)
    with refusals():
        return await platform.tasksets.GetTaskset(request, timeout=TIMEOUT_S)


@contextmanager
def refusals() -> Iterator[None]:
    """What the platform refuses was asked wrongly: its own sentence, and status 2."""
    from upcycle.rpc import RemoteNotFound, RemoteRefused, remote_errors

    try:
        with remote_errors():
            yield
    except (RemoteNotFound, RemoteRefused) as error:
        raise TasksetRefused(error.message or str(error)) from error


def split_word(number: int) -> str:
    """`held_out`."""
    from upcycle.api.common.v1.common_pb2 import Split

    return Split.Name(Split.ValueType(number)).removeprefix("SPLIT_").lower()


def _one_before(later: "GetTasksetResponse") -> str:
    name, revision = later.taskset.name, later.taskset.revision
    before = [one.revision for one in later.revisions if one.revision < revision]
    if not before:
        raise TasksetRefused(
            f"{exact_name(name, revision)} is the first revision of {name!r}",
            "name two tasksets: upcycle tasksets diff A B",
        )
    return exact_name(name, before[-1])


def diff_lines(a: str, b: str, found: Difference) -> Iterator[str]:
    """What differs from a to b: counts, then a line for each task."""
    marks = {"+": found.added, "-": found.removed, "~": found.changed}
    yield f"{a} → {b}: {found}"
    for mark, slugs in marks.items():
        yield from (f"{mark} {one_line(slug)}" for slug in slugs)
    yield from (f"= {one_line(was)} → {one_line(now)}" for was, now in found.renamed)


def _row(one: "TasksetSummary") -> tuple[str, ...]:
    from upcycle.moments import moment_of

    sides = ", ".join(f"{count} {side}" for side, count in sorted(one.splits.items()))
    when = f"{moment_of(one.registered_at):%Y-%m-%d %H:%M}"
    source = one.source_digest[:_DIGEST_CHARS] or "not known"
    words = one.name, str(one.revision), str(one.num_tasks), split_word(one.split), sides, source, when
    return *words, found_in(one)


def _fields(found: "GetTasksetResponse") -> Mapping[str, Any]:
    fields = fields_of(found.taskset)
    sides = map(split_word, found.task_splits)
    tasks = [{**task, "side": side} for task, side in zip(fields["tasks"], sides, strict=True)]
    return {**fields, "tasks": tasks, "revisions": [fields_of(one) for one in found.revisions]}


def _print(rows: list[tuple[str, ...]]) -> None:
    for line in table([list(row) for row in rows]):
        print(line)
