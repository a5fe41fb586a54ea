"""Facts that the planner reads from the stream, from protobuf to domain."""

from typing import Any

from blob_store import BlobRef
from blob_store import ref as blob_ref
from event_bus import Delivery
from identities.entities import episode_of
from reward_monitors.reading import Node, shadow_of
from scenario_runner.domain.facts import Advanced, Failed, Graded, GroupSettled, SessionFailed, Stopping
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as training
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded


def graded(event: TrajectoryGraded, _: Delivery[Any] | None = None) -> Graded:
    """The reward of an episode."""
    span = event.sampled_by
    return Graded(
        event.episode.episode_id,
        event.episode.run_id,
        event.reward,
        event.success,
        event.num_turns,
        span.oldest,
        span.newest,
        _blob_ref(event.body),
        event.stop_reason,
        event.usage.engine_s,
        event.usage.environment_s,
        event.failure.kind,
        event.failure.detail,
        shadow_of([_node(one) for one in event.subscores]),
        tuple(event.guidance_kinds),
    )


def _node(one: trajectory_pb2.Subscore) -> Node:
    return Node(one.name, one.weight, one.value, [_node(child) for child in one.children])


def failed(event: taskset.EpisodeFailed, _: Delivery[Any] | None = None) -> Failed:
    """An episode without a reward."""
    spent = (event.usage.engine_s, event.usage.environment_s)
    return Failed(event.episode.episode_id, event.episode.run_id, event.kind, event.detail, *spent)


def stopping(event: taskset.RunStopping, _: Delivery[Any]) -> Stopping:
    """The planner's own stop, as the stream has it."""
    return Stopping(event.run_id, event.is_final)


def group_settled(event: training.GroupSettled, _: Delivery[Any]) -> GroupSettled:
    """What became of a group."""
    episodes = tuple(event.episode_ids)
    return GroupSettled(
        event.group_id, event.run_id, event.outcome, event.reason, event.step, episodes, event.source_run_id
    )


def advanced(event: training.StepCompleted | training.PolicyPublished, _: Delivery[Any]) -> Advanced | None:
    """How far a run is; None where no run published it.

    Only step.completed counts steps: it is decided together with the groups of its step and comes after them,
    while policy.published may overtake them.
    """
    if not event.run_id:
        return None
    if isinstance(event, training.PolicyPublished):
        return Advanced(event.run_id, 0, event.version)
    trained = tuple(episode_of(one) for one in event.trajectory_ids)
    reward, drift = (event.metrics.values.get(name) for name in ("reward_mean", "drift_kl"))
    seconds = event.usage.trainer_s
    return Advanced(event.run_id, event.step, event.version, seconds, trained, reward or 0.0, drift)


def session_failed(event: training.SessionFailed, _: Delivery[Any]) -> SessionFailed:
    """The trainer will not go on with a run."""
    return SessionFailed(event.run_id, event.kind, event.detail)


def _blob_ref(body: common_pb2.BlobRef) -> BlobRef | None:
    return blob_ref.from_wire(body) if body.key else None
