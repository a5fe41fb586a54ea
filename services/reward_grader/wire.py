"""protobuf <-> domain, nothing else."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from reward_grader.domain import CannotGrade, Grade, GradingTask, StoredBody, Subscore, Transcript
from trajectory_body import turn_messages
from upcycle.api.environment.v1 import service_pb2 as environment_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded

_MAX_DETAIL_CHARS = 2000
SERVICE = "reward_grader"


class MalformedEvent(ValueError):
    """A fact that names no trajectory; the text says which field."""


def task_from_wire(message: TrajectoryRecorded, published_at: datetime) -> GradingTask:
    """Raises MalformedEvent."""
    for field in ("trajectory_id", "episode_id", "lease_id", "environment_address"):
        if not getattr(message, field):
            raise MalformedEvent(f"TrajectoryRecorded.{field} is empty")
    if not message.body.key:
        raise MalformedEvent("TrajectoryRecorded.body has no key")
    return GradingTask(
        trajectory_id=message.trajectory_id,
        episode_id=message.episode_id,
        body=StoredBody(message.body.key, message.body.sha256, message.body.size_bytes),
        lease_id=message.lease_id,
        environment_address=message.environment_address,
        published_at=published_at,
    )


def transcript_from_body(body: trajectory_pb2.TrajectoryBody) -> Transcript:
    """What graders see; the token arrays stay behind."""
    return Transcript(
        trajectory_id=body.trajectory_id,
        task_slug=body.task_slug,
        answer=body.answer,
        messages=list(_messages(body)),
        wire=_without_tokens(body),
    )


def _messages(body: trajectory_pb2.TrajectoryBody) -> Iterable[dict[str, Any]]:
    for message in body.prompt:
        yield {"role": message.role, "content": message.content}
    for turn in body.turns:
        yield from turn_messages(turn)


def _without_tokens(body: trajectory_pb2.TrajectoryBody) -> trajectory_pb2.TrajectoryBody:
    """Turns as sampled, without token ids: what an environment may see."""
    for turn in body.turns:
        for field in ("new_prompt_ids", "sampled_ids", "sampled_logprobs", "sampled_texts"):
            turn.ClearField(field)
    return body


def grade_from_wire(message: environment_pb2.GradeResponse) -> Grade:
    """The environment's answer."""
    return Grade(message.reward, message.success, tuple(map(_subscore_from_wire, message.subscores)))


def _subscore_from_wire(message: trajectory_pb2.Subscore) -> Subscore:
    children = tuple(map(_subscore_from_wire, message.children))
    return Subscore(message.name, message.weight, message.value, message.info, children)


def _subscore_to_wire(node: Subscore) -> trajectory_pb2.Subscore:
    return trajectory_pb2.Subscore(
        name=node.name,
        weight=node.weight,
        value=node.value,
        info=node.info,
        children=map(_subscore_to_wire, node.children),
    )


def graded_to_wire(recorded: TrajectoryRecorded, grade: Grade, at: datetime) -> TrajectoryGraded:
    """Self-sufficient: the trainer needs nothing else but the body."""
    return TrajectoryGraded(
        trajectory_id=recorded.trajectory_id,
        episode_id=recorded.episode_id,
        run_id=recorded.run_id,
        group_id=recorded.group_id,
        member=recorded.member,
        group_size=recorded.group_size,
        model=recorded.model,
        purpose=recorded.purpose,
        split=recorded.split,
        task_slug=recorded.task_slug,
        task_digest=recorded.task_digest,
        family=recorded.family,
        body=recorded.body,
        sampled_by=recorded.sampled_by,
        stop_reason=recorded.stop_reason,
        reward=grade.reward,
        success=grade.success,
        subscores=map(_subscore_to_wire, grade.subscores),
        num_turns=recorded.num_turns,
        num_sampled_tokens=recorded.num_sampled_tokens,
        graded_at=_timestamp(at),
    )


def failed_to_wire(recorded: TrajectoryRecorded, failure: CannotGrade, at: datetime) -> EpisodeFailed:
    """The fact that no reward will exist for the episode."""
    return EpisodeFailed(
        episode_id=recorded.episode_id,
        run_id=recorded.run_id,
        group_id=recorded.group_id,
        member=recorded.member,
        model=recorded.model,
        purpose=recorded.purpose,
        kind=failure.kind,
        detail=failure.detail[:_MAX_DETAIL_CHARS],
        reported_by=SERVICE,
        failed_at=_timestamp(at),
    )


def outcome_event_id(recorded: TrajectoryRecorded) -> str:
    """Shared by `trajectory.graded` and `episode.failed`: the stream lets only the first of them in."""
    return f"episode.outcome/{recorded.episode_id}"


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
