"""What a training run measured: steps from the trainer; what it forgot, from checkpoints and the ledger."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError
from upcycle.run_pages.values import GateVerdict, Step

if TYPE_CHECKING:
    from upcycle.api.registry.v1.registry_pb2 import Checkpoint
    from upcycle.api.training.v1.training_pb2 import StepPoint
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
    from upcycle.platform import Platform

MAX_STEPS: Final = 4_000
_ASK_S: Final = 30.0


async def read_steps(
    platform: "Platform",
    run_id: str,
    model: str,
    summaries: Iterable["TrajectorySummary"],
    notices: list[str],
) -> tuple[tuple[Step, ...], tuple[GateVerdict, ...]]:
    """Steps in order, and verdicts of the gate, oldest first. notices: what was not to be had is appended."""
    checkpoints = [one for one in await _checkpoints(platform, model, notices) if one.run_id == run_id]
    found = {one.step: _step_of_checkpoint(one) for one in checkpoints if one.metrics}
    for step, trained in _trained(run_id, summaries).items():
        before = found.get(step, Step(step))
        found[step] = Step(step, before.version, {**trained, **before.values}, before.staleness)
    points = await _points(platform, run_id, notices)
    found |= {point.step: _step_of_point(point) for point in points}
    if points and min(found) < points[0].step:
        notices.append(
            f"before step {points[0].step} the trainer has forgotten what it measured: "
            "checkpoints and trained episodes say what is left of it"
        )
    return tuple(found[step] for step in sorted(found)), _verdicts(checkpoints)


async def _points(platform: "Platform", run_id: str, notices: list[str]) -> "list[StepPoint]":
    from upcycle.api.training.v1.service_pb2 import GetSessionRequest
    from upcycle.rpc import RemoteError, remote_errors

    request = GetSessionRequest(run_id=run_id, num_steps=MAX_STEPS)
    try:
        with remote_errors(f"read the steps of {run_id}"):
            return list((await platform.training.GetSession(request, timeout=_ASK_S)).steps)
    except (RemoteError, UpcycleError, TimeoutError) as error:
        notices.append(f"without the trainer's own measurements: {error or 'no answer in time'}")
        return []


async def _checkpoints(platform: "Platform", model: str, notices: list[str]) -> "list[Checkpoint]":
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest
    from upcycle.rpc import RemoteError, remote_errors

    try:
        with remote_errors(f"list the checkpoints of {model}"):
            answer = await platform.registry.ListCheckpoints(
                ListCheckpointsRequest(model=model), timeout=_ASK_S
            )
    except (RemoteError, UpcycleError, TimeoutError) as error:
        notices.append(f"without the verdicts of the gate: {error or 'no answer in time'}")
        return []
    return list(answer.checkpoints)


def _step_of_point(point: "StepPoint") -> Step:
    counts = point.metrics.staleness
    total = sum(counts.values())
    staleness = sum(age * count for age, count in counts.items()) / total if total else None
    return Step(point.step, point.version, _finite(point.metrics.values), staleness)


def _step_of_checkpoint(checkpoint: "Checkpoint") -> Step:
    return Step(checkpoint.step, checkpoint.version, _finite(checkpoint.metrics))


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _trained(run_id: str, summaries: Iterable["TrajectorySummary"]) -> dict[int, dict[str, float]]:
    """Mean reward and success of what each step trained on, as far as its trajectories are listed."""
    rows = defaultdict[int, list[tuple[float, bool]]](list)
    for one in summaries:
        if one.graded and one.ledger.step and one.ledger.trained_by_run in ("", run_id):
            rows[one.ledger.step].append((one.reward, one.success))
    return {
        step: {
            "reward_mean": sum(reward for reward, _ in found) / len(found),
            "success_rate": sum(success for _, success in found) / len(found),
        }
        for step, found in rows.items()
    }


def _verdicts(checkpoints: Iterable["Checkpoint"]) -> tuple[GateVerdict, ...]:
    from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_HELD, CHECKPOINT_STATE_PROMOTED

    judged = [one for one in checkpoints if one.state in (CHECKPOINT_STATE_PROMOTED, CHECKPOINT_STATE_HELD)]
    return tuple(
        _verdict(one, is_promoted=one.state == CHECKPOINT_STATE_PROMOTED)
        for one in sorted(judged, key=lambda one: one.version)
    )


def _verdict(checkpoint: "Checkpoint", *, is_promoted: bool) -> GateVerdict:
    name, gate = checkpoint.checkpoint_id, checkpoint.gate
    if not checkpoint.HasField("gate"):
        return GateVerdict(name, checkpoint.step, checkpoint.version, is_promoted, checkpoint.reason)
    return GateVerdict(
        checkpoint_id=name,
        step=checkpoint.step,
        version=checkpoint.version,
        is_promoted=is_promoted,
        reason=checkpoint.reason or gate.reason,
        candidate_rate=gate.candidate_rate,
        head_rate=gate.head_rate,
        lower_bound=gate.pooled_lower_bound,
        confidence=gate.confidence,
        num_tasks=gate.num_tasks,
    )
