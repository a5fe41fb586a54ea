"""Facts that the planner reads from the stream, from protobuf to domain."""

from google.protobuf.message import Message

from blob_store import BlobRef
from blob_store import ref as blob_ref
from scenario_runner.domain.facts import Advanced, Fact, Failed, Graded, GroupSettled, SessionFailed, Stopping
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events


def fact_from(message: Message) -> Fact | None:
    """The fact in a message; None for a message that changes nothing in the plan."""
    match message:
        case trajectory_events.TrajectoryGraded():
            return _graded(message)
        case taskset_events.EpisodeFailed():
            return Failed(message.episode.episode_id, message.episode.run_id, message.kind, message.detail)
        case training_events.GroupSettled():
            return GroupSettled(
                message.group_id,
                message.run_id,
                message.outcome,
                message.reason,
                message.step,
                tuple(message.episode_ids),
                message.source_run_id,
            )
        case taskset_events.RunStopping():
            return Stopping(message.run_id, message.is_final)
        case training_events.SessionFailed():
            return SessionFailed(message.run_id, message.kind, message.detail)
        case training_events.StepCompleted() | training_events.PolicyPublished():
            return Advanced(message.run_id, message.step, message.version) if message.run_id else None
        case _:
            return None


def _graded(message: trajectory_events.TrajectoryGraded) -> Graded:
    span = message.sampled_by
    return Graded(
        message.episode.episode_id,
        message.episode.run_id,
        message.reward,
        message.success,
        message.num_turns,
        span.oldest,
        span.newest,
        _blob_ref(message.body),
        message.stop_reason,
    )


def _blob_ref(body: common_pb2.BlobRef) -> BlobRef | None:
    return blob_ref.from_wire(body) if body.key else None
