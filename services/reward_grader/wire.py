"""protobuf <-> domain, nothing else."""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Final

from blob_store import BlobRef
from blob_store.ref import from_wire as blob_from_wire
from blob_store.ref import to_wire as blob_to_wire
from environment_client import Lease
from episodes import MalformedIdentity, Split, identity_from_wire
from episodes.identity import SPLIT_NUMBERS, SPLITS
from event_bus import PoisonMessage
from identities.entities import RECORDED_GROUP, RECORDED_GROUP_RULE, recorded_group_id
from reward_grader.domain import (
    Grade,
    GraderTranscript,
    GradingTask,
    PolicyFailure,
    SessionGrade,
    Subscore,
    why_invalid,
)
from service_kit.errors import InvalidRequest
from trajectory_body import body_messages
from upcycle.api.common.v1 import common_pb2
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.api.environment.v1 import service_pb2 as environment_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded
from upcycle.api.trajectory.v1.service_pb2 import GradeSessionRequest
from upcycle.moments import moment_of, timestamp
from upcycle.rewards import SUCCESS_TOLERANCE
from upcycle.stored_states import states_of
from upcycle.transcripts import ToolUse, Turn

MAX_GRADE_BYTES: Final = 64 * 1024
"""Of a client's grade: an event holds it, with the episode's identity."""


def task_from_wire(message: TrajectoryRecorded, published_at: datetime) -> GradingTask:
    """Raises PoisonMessage."""
    for field in ("lease_id", "environment_address"):
        if not getattr(message, field):
            raise PoisonMessage(f"TrajectoryRecorded.{field} is empty")
    if not message.body.key:
        raise PoisonMessage("TrajectoryRecorded.body has no key")
    try:
        identity = identity_from_wire(message.episode)
    except MalformedIdentity as error:
        raise PoisonMessage(f"TrajectoryRecorded.episode: {error}") from error
    return GradingTask(
        identity=identity,
        body=blob_from_wire(message.body),
        lease=Lease(message.lease_id, message.environment_address),
        published_at=published_at,
        failure=_failure_from_wire(message),
    )


def transcript_from_body(body: trajectory_pb2.TrajectoryBody) -> GraderTranscript:
    """What extra graders see: the conversation, without tokens."""
    return GraderTranscript(
        trajectory_id=body.episode.trajectory_id,
        task_slug=body.episode.task_slug,
        answer=body.answer,
        messages=body_messages(body),
        turns=tuple(map(_turn_from_wire, body.turns)),
        states=tuple(state.value for state in states_of(body)),
    )


def _turn_from_wire(turn: trajectory_pb2.Turn) -> Turn:
    results = {result.call_id: result for result in turn.tool_results}
    uses = []
    for call in turn.tool_calls:
        result = results.get(call.call_id, trajectory_pb2.ToolResult())
        arguments = json.loads(call.arguments_json or "{}")
        uses.append(ToolUse(call.name, arguments, result.content, result.is_error))
    return Turn(turn.text, tuple(uses), turn.reasoning)


def grade_from_wire(message: environment_pb2.GradeResponse) -> Grade:
    """The environment's answer."""
    tree = tuple(map(_subscore_from_wire, message.subscores))
    failure = _failure_from_wire(message)
    if failure is not None:
        return Grade(0.0, False, tree, failure)
    return Grade(message.reward, message.success, tree, turn_rewards=tuple(message.turn_rewards))


def session_grade_from_wire(request: GradeSessionRequest) -> SessionGrade:
    """Raises InvalidRequest, naming field and value."""
    if not request.session_id or not request.key_id:
        raise InvalidRequest(
            "session_id and key_id must be given: the session, and the API key that opened it"
        )
    if not request.HasField("score"):
        raise InvalidRequest("score is missing: a reward is a number from 0 to 1")
    if not 0.0 <= request.score <= 1.0:
        raise InvalidRequest(f"score is {request.score}, expected a number from 0 to 1")
    if request.group and not RECORDED_GROUP.fullmatch(request.group):
        raise InvalidRequest(f"group is {request.group!r:.80}, expected {RECORDED_GROUP_RULE}")
    if request.ByteSize() > MAX_GRADE_BYTES:
        raise InvalidRequest(
            f"the grade has {request.ByteSize()} bytes, at most {MAX_GRADE_BYTES} are taken: shorten "
            "the info of its subscores"
        )
    split = SPLITS.get(request.split or common_pb2.SPLIT_UNASSIGNED)
    if split is None:
        raise InvalidRequest(f"split is {request.split}, expected one of {', '.join(Split)}")
    success = request.success if request.HasField("success") else request.score >= 1.0 - SUCCESS_TOLERANCE
    grade = Grade(request.score, success, tuple(map(_subscore_from_wire, request.subscores)))
    if (why := why_invalid(grade)) is not None:
        raise InvalidRequest(why)
    return SessionGrade(request.session_id, request.key_id, grade, request.group, split)


def session_graded_to_wire(
    given: SessionGrade, body: trajectory_pb2.TrajectoryBody, ref: BlobRef, at: datetime
) -> TrajectoryGraded:
    """The grade as a fact. The reward says which group and split the session is of."""
    episode = common_pb2.EpisodeIdentity()
    episode.CopyFrom(body.episode)
    episode.split = SPLIT_NUMBERS[given.split]
    if given.group:
        episode.group_id = recorded_group_id(given.key_id, given.group, episode.task_digest)
    return TrajectoryGraded(
        episode=episode,
        body=blob_to_wire(ref),
        sampled_by=body.sampled_by,
        stop_reason=body.stop_reason,
        reward=given.grade.reward,
        success=given.grade.success,
        subscores=map(_subscore_to_wire, given.grade.subscores),
        num_turns=len(body.turns),
        num_sampled_tokens=sum(len(turn.sampled_ids) for turn in body.turns),
        graded_at=timestamp(at),
    )


def is_same_grade(stored: TrajectoryGraded, given: TrajectoryGraded) -> bool:
    """Whether they differ in nothing but their moment."""
    same = TrajectoryGraded()
    same.CopyFrom(given)
    same.graded_at.CopyFrom(stored.graded_at)
    return same == stored


def _failure_from_wire(message: TrajectoryRecorded | environment_pb2.GradeResponse) -> PolicyFailure | None:
    if not message.HasField("failure"):
        return None
    failure = message.failure
    return PolicyFailure(failure.kind, failure.rule, failure.detail)


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
    failure = grade.failure
    return TrajectoryGraded(
        episode=recorded.episode,
        body=recorded.body,
        sampled_by=recorded.sampled_by,
        stop_reason=recorded.stop_reason,
        reward=grade.reward,
        success=grade.success,
        subscores=map(_subscore_to_wire, grade.subscores),
        num_turns=recorded.num_turns,
        num_sampled_tokens=recorded.num_sampled_tokens,
        graded_at=timestamp(at),
        usage=usage_until(recorded, at),
        failure=None if failure is None else trajectory_pb2.PolicyFailure(**asdict(failure)),
        turn_rewards=grade.turn_rewards,
        guidance_kinds=recorded.guidance_kinds,
    )


def usage_until(recorded: TrajectoryRecorded, until: datetime) -> Usage:
    """The environment is held from its record to its grade; that hosts' clocks differ takes nothing away."""
    grading_s = max(0.0, (until - moment_of(recorded.recorded_at)).total_seconds())
    environment_s = recorded.usage.environment_s + grading_s
    return Usage(engine_s=recorded.usage.engine_s, environment_s=environment_s)
