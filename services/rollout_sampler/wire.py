"""protobuf <-> domain, nothing else."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import orjson

from blob_store import BlobRef
from blob_store.ref import to_wire as blob_to_wire
from engine_client import Completion, FinishReason
from environment_client import OpenedEnvironment
from episodes import MalformedIdentity, identity_from_wire, identity_to_wire
from episodes.identity import CHANNELS
from event_bus import PoisonMessage
from rollout_sampler.domain import EpisodeTask, PolicyWanted
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.moments import moment_of, timestamp
from upcycle.run_config import RunConfigInvalid, Sampling
from upcycle.run_config.wire import sampling_from_wire

_FINISH_REASONS: Final[Mapping[FinishReason, trajectory_pb2.FinishReason.ValueType]] = {
    FinishReason.STOP: trajectory_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: trajectory_pb2.FINISH_REASON_LENGTH,
}


def task_from_wire(message: taskset_events.EpisodeRequested) -> EpisodeTask:
    """Raises PoisonMessage."""
    try:
        identity = identity_from_wire(message.episode)
    except MalformedIdentity as error:
        raise PoisonMessage(f"EpisodeRequested.episode: {error}") from error
    return EpisodeTask(
        identity=identity,
        policy=policy_from_wire(message.policy),
        sampling=_sampling(message.sampling),
        seed=message.sampling.seed if message.sampling.HasField("seed") else None,
        deadline=moment_of(message.deadline) if message.HasField("deadline") else None,
        time_s=_time_s(message),
        failures_are_missing=message.failures_are_missing,
    )


def _time_s(message: taskset_events.EpisodeRequested) -> float | None:
    if not (message.HasField("deadline") and message.HasField("requested_at")):
        return None
    return (moment_of(message.deadline) - moment_of(message.requested_at)).total_seconds()


def policy_from_wire(message: common_pb2.PolicySelector) -> PolicyWanted:
    """Raises PoisonMessage."""
    if not message.model:
        raise PoisonMessage("EpisodeRequested.policy.model is empty")
    if message.WhichOneof("at") == "pinned_version":
        return PolicyWanted(message.model, pinned_version=message.pinned_version)
    channel = CHANNELS.get(message.channel or common_pb2.CHANNEL_LATEST)
    if channel is None:
        raise PoisonMessage(f"EpisodeRequested.policy.channel is {message.channel}, expected 0..3")
    return PolicyWanted(message.model, channel)


def _sampling(message: taskset_pb2.SamplingConfig) -> Sampling:
    """All but the seed, which is an episode's here and has a bit more than a run's."""
    unseeded = taskset_pb2.SamplingConfig()
    unseeded.CopyFrom(message)
    unseeded.ClearField("seed")
    try:
        return sampling_from_wire(unseeded)
    except RunConfigInvalid as error:
        raise PoisonMessage(f"EpisodeRequested: {error}") from error


def new_body(
    task: EpisodeTask, environment: OpenedEnvironment, started_at: datetime, traceparent: str
) -> trajectory_pb2.TrajectoryBody:
    """The record of an episode that begins; turns are appended as they are played."""
    return trajectory_pb2.TrajectoryBody(
        episode=identity_to_wire(task.identity),
        prompt=environment.prompt,
        temperature=task.sampling.temperature,
        started_at=timestamp(started_at),
        traceparent=traceparent,
        tools_json=orjson.dumps(environment.tools).decode(),
        lease_id=environment.lease.lease_id,
        environment_address=environment.lease.address,
        source_digest=environment.source_digest,
        first_state=environment.first_state,
        guidance=environment.guidance,
        guidance_parts=environment.guidance_parts,
    )


def sampled_turn(
    new_prompt_ids: Sequence[int], completion: Completion, token_texts: Sequence[str]
) -> trajectory_pb2.Turn:
    """A turn with all that the engine sampled; its meaning and the tools' answers are filled in later."""
    return trajectory_pb2.Turn(
        new_prompt_ids=new_prompt_ids,
        sampled_ids=completion.token_ids,
        sampled_logprobs=completion.logprobs,
        sampled_texts=token_texts,
        versions=[
            trajectory_pb2.TokenVersions(
                version=span.version,
                weights_digest=completion.weights_digests[span.version],
                num_tokens=span.end - span.start,
            )
            for span in completion.version_spans
        ],
        finish_reason=_FINISH_REASONS[completion.finish_reason],
    )


def end_body(body: trajectory_pb2.TrajectoryBody, ended_at: datetime, engine_id: str) -> None:
    """Fill in what is known when the last turn is played."""
    versions = [span.version for turn in body.turns for span in turn.versions]
    body.sampled_by.oldest, body.sampled_by.newest = min(versions), max(versions)
    body.ended_at.FromDatetime(ended_at)
    note_environment(body, ended_at)
    body.engine_id = engine_id


def note_environment(body: trajectory_pb2.TrajectoryBody, until: datetime) -> None:
    """Fill in how long the environment has been held."""
    body.usage.environment_s = (until - moment_of(body.started_at)).total_seconds()


def recorded_to_wire(
    body: trajectory_pb2.TrajectoryBody, ref: BlobRef
) -> trajectory_events.TrajectoryRecorded:
    """The fact that the body is stored; equal for every sampler that finds the same body."""
    return trajectory_events.TrajectoryRecorded(
        episode=body.episode,
        body=blob_to_wire(ref),
        sampled_by=body.sampled_by,
        stop_reason=body.stop_reason,
        num_turns=len(body.turns),
        num_sampled_tokens=sum(len(turn.sampled_ids) for turn in body.turns),
        lease_id=body.lease_id,
        environment_address=body.environment_address,
        recorded_at=body.ended_at,
        engine_id=body.engine_id,
        usage=body.usage,
        failure=body.failure if body.HasField("failure") else None,
        guidance_kinds=[part.kind for part in body.guidance_parts],
    )
