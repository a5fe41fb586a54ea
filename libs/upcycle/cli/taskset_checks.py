"""What leak scans and attacks on graders found in a taskset, for people."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from upcycle.printable import one_line
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import TasksetCheck, TasksetSummary

_DIGEST_CHARS: Final = 12
ANY_MODEL: Final = "the same cheats for every model"


def found_in(taskset: "TasksetSummary") -> str:
    """For a table: `2 leaks, 1 by attacks`; what was found in the source that lies there now, where any of it
    was looked at."""
    from upcycle.api.taskset.v1.taskset_pb2 import TASKSET_CHECK_KIND_LEAK_SCAN as LEAKS

    ended = [one for one in taskset.checks if one.HasField("checked_at")]
    current = [one for one in ended if not is_older(one, taskset)] or ended
    leaks = sum(one.num_findings for one in current if one.kind == LEAKS)
    attacks = sum(one.num_findings for one in current if one.kind != LEAKS)
    said = [amount(leaks, "leak")] if leaks else []
    said += [f"{attacks} by attacks"] if attacks else []
    looked = sum(one.num_looked for one in current)
    return ", ".join(said) or ("nothing" if looked else "not searched" if ended else "not looked at")


def check_lines(taskset: "TasksetSummary") -> Iterator[str]:
    """Of a revision: a line for each check, and its findings below it."""
    for check in taskset.checks:
        yield _head(check, taskset)
        for finding in check.findings:
            yield f"  {one_line(finding)}"
        if more := check.num_findings - len(check.findings):
            yield f"  and {more} more"


def is_older(check: "TasksetCheck", taskset: "TasksetSummary") -> bool:
    """Whether another source of the environment was looked at than lies there now."""
    known = bool(check.source_digest and taskset.source_digest)
    return known and check.source_digest != taskset.source_digest


def _head(check: "TasksetCheck", taskset: "TasksetSummary") -> str:
    from upcycle.api.taskset.v1.taskset_pb2 import TASKSET_CHECK_KIND_LEAK_SCAN as LEAKS
    from upcycle.moments import moment_of

    name = "leak scan" if check.kind == LEAKS else f"attack on the graders ({_against(check)})"
    older = (
        f", of an older source ({check.source_digest[:_DIGEST_CHARS]})" if is_older(check, taskset) else ""
    )
    if not check.HasField("checked_at"):
        return f"{name}{older}: under way"
    plays = f", {amount(check.num_plays, 'play')}" if check.num_plays else ""
    looked = f"{check.num_looked} of {amount(check.num_tasks, 'task')}{plays}"
    when = f"{moment_of(check.checked_at):%Y-%m-%d %H:%M} UTC by {one_line(check.checked_by)}"
    stopped = f"; {one_line(check.stopped)}" if check.stopped else ""
    return f"{name}{older}: {amount(check.num_findings, 'finding')} in {looked}, {when}{stopped}"


def _against(check: "TasksetCheck") -> str:
    return f"against {one_line(check.model_family)}" if check.model_family else ANY_MODEL
