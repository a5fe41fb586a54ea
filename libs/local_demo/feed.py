"""What the loop is doing, reduced from its facts: the live view, and half of the report, read this state."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD, PURPOSE_EVAL, PURPOSE_TRAIN
from upcycle.api.registry.v1 import events_pb2 as registry
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import events_pb2 as trajectory

RECENT = 256


@dataclass(slots=True)
class LoopState:
    """Mutable on purpose: one writer (`apply`), many readers in the same event loop.

    sampled_before_first_step: episodes that the training run had sampled itself; groups_from: groups that
    trained, by the evaluation that sampled them.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    recent_rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    recent_successes: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    latest_version: int = 0
    target_steps: int = 0
    sampled_before_first_step: int = 0
    groups_from: Counter[str] = field(default_factory=Counter)
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    head_version: int = 0
    held_out: list[tuple[int, float]] = field(default_factory=list)
    verdicts: list[registry.CheckpointEvaluated] = field(default_factory=list)
    checkpoints: Counter[str] = field(default_factory=Counter)
    reloads: list[registry.EngineReloaded] = field(default_factory=list)
    promotions: list[registry.CheckpointPromoted] = field(default_factory=list)
    rollbacks: list[registry.CheckpointRolledBack] = field(default_factory=list)
    failed_reloads: list[registry.EngineReloadFailed] = field(default_factory=list)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=12))


def apply(state: LoopState, event: Message) -> str | None:
    """Fold one fact into `state`; the line that a person should see for it, if any."""
    reducer = _REDUCERS.get(type(event))
    line = reducer(state, event) if reducer is not None else None
    if line is not None:
        state.log.append(line)
    return line


def _requested(state: LoopState, event: taskset.EpisodeRequested) -> None:
    state.episodes["requested"] += 1


def _recorded(state: LoopState, event: trajectory.TrajectoryRecorded) -> None:
    state.episodes["sampled"] += 1
    if event.episode.purpose == PURPOSE_TRAIN and not state.step:
        state.sampled_before_first_step += 1


def _graded(state: LoopState, event: trajectory.TrajectoryGraded) -> None:
    state.episodes["graded"] += 1
    if event.episode.purpose == PURPOSE_EVAL:
        state.episodes["evaluated"] += 1
    else:
        state.recent_rewards.append(event.reward)
        state.recent_successes.append(event.success)


def _failed(state: LoopState, event: taskset.EpisodeFailed) -> str:
    state.episodes["failed"] += 1
    return f"episode {event.episode.episode_id} failed: {event.kind} ({event.detail[:80]})"


def _cancelled(state: LoopState, event: taskset.EpisodeCancelled) -> None:
    state.episodes["cancelled"] += 1


def _settled(state: LoopState, event: training.GroupSettled) -> None:
    is_trained = event.outcome == "trained"
    if event.source_run_id and is_trained:
        state.groups_from[event.source_run_id] += 1
    if event.outcome == "released":  # they stay evaluated
        return
    label = "trained" if is_trained else f"excluded({event.reason})"
    state.episodes[label] += len(event.episode_ids)


def _stepped(state: LoopState, event: training.StepCompleted) -> str:
    state.step = event.step
    state.metrics = dict(event.metrics.values)
    for versions, count in event.metrics.staleness.items():
        state.staleness[versions] = state.staleness.get(versions, 0) + count
    shown = " ".join(f"{key} {state.metrics[key]:.3g}" for key in SHOWN_METRICS if key in state.metrics)
    return f"step {event.step} → v{event.version}: {len(event.trajectory_ids)} trajectories {shown}"


SHOWN_METRICS = ("reward_mean", "success_rate", "mismatch_kl", "entropy", "step_s")


def _published(state: LoopState, event: training.PolicyPublished) -> None:
    state.latest_version = max(state.latest_version, event.version)
    state.target_steps = event.target_steps


def _saved(state: LoopState, event: training.CheckpointSaved) -> str:
    state.checkpoints["saved"] += 1
    return f"checkpoint v{event.version} asks to be judged"


def _evaluated(state: LoopState, event: registry.CheckpointEvaluated) -> str:
    state.held_out.append((event.version, event.report.candidate_rate))
    state.verdicts.append(event)
    report = event.report
    against = f"{report.head_rate:.1%} of head, lower bound {report.pooled_lower_bound:+.3f}"
    looks = f"{report.verdict} after {report.attempts} attempts a side"
    return f"checkpoint v{event.version}: gate {report.candidate_rate:.1%} against {against}; {looks}"


def _promoted(state: LoopState, event: registry.CheckpointPromoted) -> str:
    state.head_version = event.version
    state.checkpoints["promoted"] += 1
    state.promotions.append(event)
    return f"PROMOTED v{event.version}: {event.reason}"


def _held(state: LoopState, event: registry.CheckpointHeld) -> str:
    state.checkpoints["held"] += 1
    return f"held v{event.version}: {event.reason}"


def _rolled_back(state: LoopState, event: registry.CheckpointRolledBack) -> str:
    state.head_version = event.version
    state.rollbacks.append(event)
    return f"ROLLED BACK to v{event.version}: {event.reason}"


def _reloaded(state: LoopState, event: registry.EngineReloaded) -> str | None:
    state.reloads.append(event)
    if event.channel != CHANNEL_HEAD:
        return None
    return f"head engine serves v{event.version} (canary off by {event.canary_max_abs_diff:.1e})"


def _reload_failed(state: LoopState, event: registry.EngineReloadFailed) -> str:
    state.failed_reloads.append(event)
    return (
        f"RELOAD FAILED: {event.engine_id} keeps v{event.serving_version}: {event.kind} {event.detail[:80]}"
    )


_REDUCERS: dict[type[Message], Callable[[LoopState, Any], str | None]] = {
    taskset.EpisodeRequested: _requested,
    taskset.EpisodeFailed: _failed,
    taskset.EpisodeCancelled: _cancelled,
    trajectory.TrajectoryRecorded: _recorded,
    trajectory.TrajectoryGraded: _graded,
    training.GroupSettled: _settled,
    training.StepCompleted: _stepped,
    training.PolicyPublished: _published,
    training.CheckpointSaved: _saved,
    registry.CheckpointEvaluated: _evaluated,
    registry.CheckpointPromoted: _promoted,
    registry.CheckpointHeld: _held,
    registry.CheckpointRolledBack: _rolled_back,
    registry.EngineReloaded: _reloaded,
    registry.EngineReloadFailed: _reload_failed,
}

FACTS: tuple[type[Message], ...] = tuple(_REDUCERS)
"""Every event type that the state is reduced from."""
