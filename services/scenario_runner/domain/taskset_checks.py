"""What was found in a taskset: by the leak scan after it was registered, by attacks on its graders. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

MAX_FINDINGS: Final = 20
"""That are kept of one check."""
MAX_FINDING_CHARS: Final = 500
MAX_MODEL_CHARS: Final = 100
MAX_CHECKS: Final = 20
"""That are kept of one kind with a revision."""
MAX_GIVEN_FINDINGS: Final = 200
"""In all checks of one answer."""
_MAX_BARE_CHARS: Final = 100
"""Of why a check stopped, where its findings are counted alone."""


class CheckKind(StrEnum):
    """Which look at a taskset."""

    LEAK_SCAN = "leak_scan"
    ATTACK = "attack"


@dataclass(frozen=True, slots=True)
class TasksetCheck:
    """See upcycle.api.taskset.v1.TasksetCheck. taskset: key of the revision. model: `model_family` of
    the message, the name of a model. checked_at: None for a scan that is ordered and has not ended."""

    taskset: str
    kind: CheckKind
    source_digest: str = ""
    model: str = ""
    checked_by: str = ""
    checked_at: datetime | None = None
    num_tasks: int = 0
    num_looked: int = 0
    num_plays: int = 0
    num_findings: int = 0
    findings: tuple[str, ...] = ()
    stopped: str = ""


def surplus(checks: Iterable[TasksetCheck], kept: TasksetCheck, source_digest: str) -> list[TasksetCheck]:
    """Of one kind with a revision, those that are more than are kept: of an older source first, then the
    oldest. kept: stays. source_digest: of the source now."""

    def rank(check: TasksetCheck) -> tuple[bool, bool, float]:
        moment = check.checked_at.timestamp() if check.checked_at else 0.0
        return check.source_digest == source_digest, check.checked_at is None, moment

    others = sorted((one for one in checks if one != kept), key=rank, reverse=True)
    return others[MAX_CHECKS - 1 :]


def given(check: TasksetCheck, num_findings: int) -> TasksetCheck:
    """For an answer that has room for so many findings; num_findings counts all."""
    if num_findings > 0:
        return replace(check, findings=check.findings[:num_findings])
    return replace(check, findings=(), stopped=check.stopped[:_MAX_BARE_CHARS])


def newest_of_each(checks: Iterable[TasksetCheck]) -> list[TasksetCheck]:
    """Of each taskset, kind and model the newest that ended: one of an older source says less."""
    found: dict[tuple[str, CheckKind, str], tuple[datetime, TasksetCheck]] = {}
    for one in checks:
        key = (one.taskset, one.kind, one.model)
        if one.checked_at is not None and (key not in found or found[key][0] < one.checked_at):
            found[key] = one.checked_at, one
    return [check for _, check in found.values()]
