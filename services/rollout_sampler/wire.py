"""protobuf <-> domain, nothing else."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from google.protobuf.timestamp_pb2 import Timestamp

from rollout_sampler.domain import (
    Budget,
    Channel,
    EpisodeTask,
    Failed,
    OpenedEnvironment,
    PolicyWanted,
    RecordedFacts,
    ScenarioMessage,
    StoredBody,
    ToolCall,
    Trajectory,
    Turn,
    num_sampled_tokens,
    version_span,
)
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as environment_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import trajectory_pb2

_MAX_DETAIL_CHARS: Final = 2000
SERVICE: Final = "rollout_sampler"


class MalformedRequest(ValueError):
    """A command that cannot be an episode; the text says which field."""


def task_from_wire(message: taskset_events.EpisodeRequested) -> EpisodeTask:
    """Raises MalformedRequest."""
    for field in ("episode_id", "run_id", "group_id"):
        if not getattr(message, field):
            raise MalformedRequest(f"EpisodeRequested.{field} is empty")
    return EpisodeTask(
        episode_id=message.episode_id,
        run_id=message.run_id,
        group_id=message.group_id,
        member=message.member,
        group_size=message.group_size,
        purpose=message.purpose,
        split=message.split,
        policy=_policy(message.policy),
        budget=_budget(message.sampling),
        task_slug=message.task_slug,
        task_digest=message.task_digest,
        family=message.family,
        deadline=_moment(message.deadline) if message.HasField("deadline") else None,
        requested_at=_moment(message.requested_at) if message.HasField("requested_at") else None,
    )


def _policy(message: common_pb2.PolicySelector) -> PolicyWanted:
    if not message.model:
        raise MalformedRequest("EpisodeRequested.policy.model is empty")
    if message.WhichOneof("at") == "pinned_version":
        return PolicyWanted(message.model, pinned_version=message.pinned_version)
    try:
        return PolicyWanted(message.model, Channel(message.channel or common_pb2.CHANNEL_LATEST))
    except ValueError as error:
        raise MalformedRequest(
            f"EpisodeRequested.policy.channel is {message.channel}, expected 0..3"
        ) from error


def _budget(message: taskset_pb2.SamplingConfig) -> Budget:
    budget = Budget(**{field.name: value for field, value in message.ListFields()})
    for name in ("max_turns", "max_tokens_per_turn", "max_tokens_per_episode"):
        if getattr(budget, name) < 1:
            raise MalformedRequest(
                f"EpisodeRequested.sampling.{name} is {getattr(budget, name)}, expected 1 or more"
            )
    return budget


def environment_from_wire(message: environment_pb2.OpenResponse, default_address: str) -> OpenedEnvironment:
    """A lease; an empty address means the replica that answered.

    Raises ValueError where a tool's schema is no JSON object.
    """
    return OpenedEnvironment(
        lease_id=message.lease_id,
        address=message.environment_address or default_address,
        prompt=tuple(map(_scenario_message, message.prompt)),
        tools=tuple(map(_function_spec, message.tools)),
    )


def _scenario_message(message: trajectory_pb2.Message) -> ScenarioMessage:
    calls = tuple(ToolCall(call.call_id, call.name, call.arguments_json) for call in message.tool_calls)
    return ScenarioMessage(message.role, message.content, calls, message.tool_call_id, message.name)


def _function_spec(tool: environment_pb2.ToolSpec) -> Mapping[str, Any]:
    parameters = orjson.loads(tool.parameters_json) if tool.parameters_json else {}
    if not isinstance(parameters, dict):
        raise ValueError(f"tool {tool.name!r}: parameters_json is no JSON object")
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def body_to_wire(trajectory: Trajectory) -> trajectory_pb2.TrajectoryBody:
    """The whole record."""
    task, environment = trajectory.task, trajectory.environment
    oldest, newest = version_span(trajectory.turns)
    return trajectory_pb2.TrajectoryBody(
        trajectory_id=task.trajectory_id,
        episode_id=task.episode_id,
        run_id=task.run_id,
        group_id=task.group_id,
        member=task.member,
        model=task.policy.model,
        purpose=common_pb2.Purpose.ValueType(task.purpose),
        split=common_pb2.Split.ValueType(task.split),
        task_slug=task.task_slug,
        task_digest=task.task_digest,
        prompt=map(_message_to_wire, environment.prompt),
        turns=map(_turn_to_wire, trajectory.turns),
        stop_reason=trajectory_pb2.StopReason.ValueType(trajectory.stop_reason),
        answer=trajectory.answer,
        temperature=task.budget.temperature,
        sampled_by=common_pb2.VersionSpan(oldest=oldest, newest=newest),
        started_at=_timestamp(trajectory.started_at),
        ended_at=_timestamp(trajectory.ended_at),
        engine_id=trajectory.turns[-1].completion.engine_id,
        traceparent=trajectory.traceparent,
        tools_json=orjson.dumps(environment.tools).decode(),
        lease_id=environment.lease_id,
        environment_address=environment.address,
    )


def _turn_to_wire(turn: Turn) -> trajectory_pb2.Turn:
    completion = turn.completion
    return trajectory_pb2.Turn(
        new_prompt_ids=turn.new_prompt_ids,
        sampled_ids=completion.token_ids,
        sampled_logprobs=completion.logprobs,
        sampled_texts=turn.token_texts,
        versions=[
            trajectory_pb2.TokenVersions(
                version=span.version, weights_digest=span.weights_digest, num_tokens=span.num_tokens
            )
            for span in completion.versions
        ],
        finish_reason=trajectory_pb2.FinishReason.ValueType(completion.finish_reason),
        text=turn.text,
        tool_calls=map(_call_to_wire, turn.tool_calls),
        tool_results=[
            trajectory_pb2.ToolResult(
                call_id=result.call_id,
                content=result.content,
                is_error=result.is_error,
                duration_s=result.duration_s,
            )
            for result in turn.tool_results
        ],
        parse_error=turn.parse_error,
        sampling_s=turn.sampling_s,
        tools_s=turn.tools_s,
        started_s=turn.started_s,
    )


def _message_to_wire(message: ScenarioMessage) -> trajectory_pb2.Message:
    return trajectory_pb2.Message(
        role=message.role,
        content=message.content,
        tool_calls=map(_call_to_wire, message.tool_calls),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _call_to_wire(call: ToolCall) -> trajectory_pb2.ToolCall:
    return trajectory_pb2.ToolCall(call_id=call.call_id, name=call.name, arguments_json=call.arguments_json)


def facts_of(body: trajectory_pb2.TrajectoryBody, key: str, data: bytes) -> RecordedFacts:
    """What the stored body says, so that every writer who finds it announces the same event."""
    return RecordedFacts(
        body=StoredBody(key, hashlib.sha256(data).hexdigest(), len(data)),
        oldest_version=body.sampled_by.oldest,
        newest_version=body.sampled_by.newest,
        stop_reason=body.stop_reason,
        num_turns=len(body.turns),
        num_sampled_tokens=sum(len(turn.sampled_ids) for turn in body.turns),
        lease_id=body.lease_id,
        environment_address=body.environment_address,
        engine_id=body.engine_id,
        ended_at=_moment(body.ended_at),
    )


def facts_of_trajectory(trajectory: Trajectory, stored: StoredBody) -> RecordedFacts:
    """The same facts as `facts_of`, without reading back what was just written."""
    oldest, newest = version_span(trajectory.turns)
    return RecordedFacts(
        body=stored,
        oldest_version=oldest,
        newest_version=newest,
        stop_reason=trajectory.stop_reason,
        num_turns=len(trajectory.turns),
        num_sampled_tokens=num_sampled_tokens(trajectory.turns),
        lease_id=trajectory.environment.lease_id,
        environment_address=trajectory.environment.address,
        engine_id=trajectory.turns[-1].completion.engine_id,
        ended_at=trajectory.ended_at,
    )


def recorded_to_wire(task: EpisodeTask, facts: RecordedFacts) -> trajectory_events.TrajectoryRecorded:
    """The fact that the body is stored."""
    return trajectory_events.TrajectoryRecorded(
        trajectory_id=task.trajectory_id,
        episode_id=task.episode_id,
        run_id=task.run_id,
        group_id=task.group_id,
        member=task.member,
        group_size=task.group_size,
        model=task.policy.model,
        purpose=common_pb2.Purpose.ValueType(task.purpose),
        split=common_pb2.Split.ValueType(task.split),
        task_slug=task.task_slug,
        task_digest=task.task_digest,
        family=task.family,
        body=common_pb2.BlobRef(
            key=facts.body.key, sha256=facts.body.sha256, size_bytes=facts.body.size_bytes
        ),
        sampled_by=common_pb2.VersionSpan(oldest=facts.oldest_version, newest=facts.newest_version),
        stop_reason=trajectory_pb2.StopReason.ValueType(facts.stop_reason),
        num_turns=facts.num_turns,
        num_sampled_tokens=facts.num_sampled_tokens,
        lease_id=facts.lease_id,
        environment_address=facts.environment_address,
        recorded_at=_timestamp(facts.ended_at),
        engine_id=facts.engine_id,
    )


def failed_to_wire(task: EpisodeTask, failure: Failed, at: datetime) -> taskset_events.EpisodeFailed:
    """The fact that no reward will exist for the episode."""
    return taskset_events.EpisodeFailed(
        episode_id=task.episode_id,
        run_id=task.run_id,
        group_id=task.group_id,
        member=task.member,
        model=task.policy.model,
        purpose=common_pb2.Purpose.ValueType(task.purpose),
        kind=failure.kind,
        detail=failure.detail[:_MAX_DETAIL_CHARS],
        reported_by=SERVICE,
        failed_at=_timestamp(at),
    )


def recorded_event_id(task: EpisodeTask) -> str:
    """Equal for every sampler that announces this record."""
    return f"trajectory.recorded/{task.trajectory_id}"


def outcome_event_id(task: EpisodeTask) -> str:
    """Shared by `episode.failed` and the grader's `trajectory.graded`: the stream lets only the first in."""
    return f"episode.outcome/{task.episode_id}"


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
