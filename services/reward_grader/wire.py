"""protobuf <-> domain, nothing else."""

import json
from dataclasses import asdict
from datetime import datetime

from blob_store.ref import from_wire as blob_from_wire
from environment_client import Lease
from episodes import MalformedIdentity, identity_from_wire
from event_bus import PoisonMessage
from reward_grader.domain import Grade, GraderTranscript, GradingTask, PolicyFailure, Subscore
from trajectory_body import body_messages
from upcycle.api.common.v1.common_pb2 import Usage
from upcycle.api.environment.v1 import service_pb2 as environment_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded
from upcycle.moments import moment_of, timestamp
from upcycle.stored_states import states_of
from upcycle.transcripts import ToolUse, Turn


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
    )


def usage_until(recorded: TrajectoryRecorded, until: datetime) -> Usage:
    """The environment is held from its record to its grade; that hosts' clocks differ takes nothing away."""
    grading_s = max(0.0, (until - moment_of(recorded.recorded_at)).total_seconds())
    environment_s = recorded.usage.environment_s + grading_s
    return Usage(engine_s=recorded.usage.engine_s, environment_s=environment_s)
