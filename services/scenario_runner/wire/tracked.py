"""Tracked rates of a run: domain to protobuf."""

from collections.abc import Sequence

from scenario_runner.domain.tracked import TrackedRow, by_set
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.tracking import drops


def tracked_to_wire(rows: Sequence[TrackedRow], epochs_a_step: float) -> list[taskset_pb2.TrackedRate]:
    """Oldest step first, each with whether it is a drop. epochs_a_step: passes over the training taskset."""
    dropped: set[tuple[str, int]] = set()
    for name, played in by_set(rows).items():
        found = drops([row.point for row in played])
        dropped |= {(name, row.step) for row, is_drop in zip(played, found, strict=True) if is_drop}
    return [_rate_to_wire(row, (row.taskset, row.step) in dropped, epochs_a_step) for row in rows]


def _rate_to_wire(row: TrackedRow, is_drop: bool, epochs_a_step: float) -> taskset_pb2.TrackedRate:
    message = taskset_pb2.TrackedRate(
        taskset=row.taskset,
        step=row.step,
        version=row.version,
        run_id=row.eval_run_id,
        state=row.state.value,
        detail=row.detail,
        num_tasks=len(row.outcomes),
        reward_mean=row.reward,
        drift_kl=row.drift,
        dropped=is_drop,
        epoch=row.step * epochs_a_step,
    )
    if (rate := row.point.rate) is not None:
        message.rate = rate.value
        if rate.interval is not None:
            message.low, message.high = rate.interval.low, rate.interval.high
    return message
