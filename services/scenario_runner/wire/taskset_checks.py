"""Checks of tasksets: protobuf to domain and back."""

from collections.abc import Mapping
from typing import Final

from scenario_runner.domain.taskset_checks import CheckKind, TasksetCheck
from service_kit.errors import InvalidRequest
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.moments import timestamp

_KINDS: Final[Mapping[CheckKind, taskset_pb2.TasksetCheckKind.ValueType]] = {
    CheckKind.LEAK_SCAN: taskset_pb2.TASKSET_CHECK_KIND_LEAK_SCAN,
    CheckKind.ATTACK: taskset_pb2.TASKSET_CHECK_KIND_ATTACK,
}


def check_from_wire(message: taskset_pb2.TasksetCheck, *, checked_by: str) -> TasksetCheck:
    """Of a caller, which does not say when it is kept and by whom. Raises InvalidRequest."""
    kind = next((kind for kind, number in _KINDS.items() if number == message.kind), None)
    if kind is None:
        raise InvalidRequest(f"check.kind is {message.kind}; use TASKSET_CHECK_KIND_ATTACK")
    return TasksetCheck(
        "",
        kind,
        message.source_digest,
        message.model_family,
        checked_by,
        num_tasks=message.num_tasks,
        num_looked=message.num_looked,
        num_plays=message.num_plays,
        num_findings=message.num_findings,
        findings=tuple(message.findings),
        stopped=message.stopped,
    )


def check_to_wire(check: TasksetCheck) -> taskset_pb2.TasksetCheck:
    """As it is kept."""
    return taskset_pb2.TasksetCheck(
        kind=_KINDS[check.kind],
        model_family=check.model,
        checked_by=check.checked_by,
        checked_at=None if check.checked_at is None else timestamp(check.checked_at),
        source_digest=check.source_digest,
        num_tasks=check.num_tasks,
        num_looked=check.num_looked,
        num_plays=check.num_plays,
        num_findings=check.num_findings,
        findings=check.findings,
        stopped=check.stopped,
    )
