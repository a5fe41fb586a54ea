"""Recorded sessions: from calls to the turns of a trajectory, and the facts about them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import orjson

from blob_store import BlobRef
from blob_store.ref import to_wire as blob_to_wire
from episodes import EpisodeIdentity, Purpose, Split, identity_to_wire
from episodes.identity import SPLIT_NUMBERS
from identities.entities import recorded_episode_id, recorded_run_id
from model_gateway.domain.conversations import CallTokens, rows_of
from model_gateway.domain.rewards import SessionReward
from model_gateway.domain.sampled_answers import samples_another_distribution
from model_gateway.domain.sessions import (
    RecordedCall,
    SampledChoice,
    Session,
    StorableCall,
    StoredCall,
    UnrecordableCall,
    messages_of,
)
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import events_pb2 as pb_events
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2 import GradeSessionRequest
from upcycle.moments import timestamp
from upcycle.rewards import SubScore

TASK_SLUG: Final = "session"
_FINISH: Final = {
    "stop": pb.FINISH_REASON_STOP,
    "tool_calls": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
}
Messages = Sequence[Mapping[str, Any]]


def identity_of(session: Session) -> EpisodeIdentity:
    """A session is an episode that no planner has planned: of no group until its reward names one."""
    episode_id = recorded_episode_id(session.session_id)
    return EpisodeIdentity(
        episode_id=episode_id,
        run_id=recorded_run_id(session.key_id),
        group_id=episode_id,
        member=0,
        group_size=1,
        model=session.model,
        purpose=Purpose.EVAL,
        split=Split.UNASSIGNED,
        task_slug=TASK_SLUG,
        task_digest=session.task_digest,
        family="default",
        labels=session.labels,
    )


def storable(call: RecordedCall) -> StorableCall | UnrecordableCall:
    """The call as rows, each of which can be read again; else why not. What a client or an engine said may
    be of any shape, and what only fails once the session is closed would keep it from ever being closed."""
    messages = messages_of(call.body)
    try:
        for message in messages:
            _check_tool_calls(message)
        return StorableCall(
            key=call.key,
            model=call.model,
            messages=orjson.dumps(messages).decode(),
            tools=orjson.dumps(call.body.get("tools") or []).decode(),
            turns=[turn_to_wire(call, choice).SerializeToString() for choice in call.choices],
            temperature=call.temperature,
            started_at=call.started_at,
            ended_at=call.ended_at,
        )
    except Exception as error:
        return UnrecordableCall(call.key.session_id, repr(error))


def _check_tool_calls(message: Mapping[str, Any]) -> None:
    """Raises what `message_to_wire` would; whatever else is in it, is text there or left out. Each call has
    the whole conversation again, so no message is built here."""
    for call in message.get("tool_calls") or ():
        (call.get("function") or {}).get("name")


def turn_to_wire(call: RecordedCall, choice: SampledChoice) -> pb.Turn:
    """An answer as a turn that holds its whole prompt."""
    known = _tokens_to_wire(call, choice) if choice.has_tokens else {}
    return pb.Turn(
        finish_reason=_FINISH.get(choice.finish_reason, pb.FINISH_REASON_UNSPECIFIED),
        text=choice.text,
        reasoning=choice.reasoning,
        tool_calls=[
            pb.ToolCall(call_id=one["id"], name=one["name"], arguments_json=one["arguments"])
            for one in choice.tool_calls.values()
        ],
        sampling_s=(call.ended_at - call.started_at).total_seconds(),
        restarts_context=True,
        **known,
    )


def _tokens_to_wire(call: RecordedCall, choice: SampledChoice) -> dict[str, Any]:
    num_tokens = len(choice.token_ids)
    return {
        "new_prompt_ids": choice.prompt_ids,
        "sampled_ids": choice.token_ids,
        "sampled_logprobs": _at_most_0(choice.logprobs),
        "versions": _versions(call, choice),
        "sampled_texts": choice.token_texts if len(choice.token_texts) == num_tokens else (),
        "num_inserted": num_tokens if samples_another_distribution(call.body) else 0,
    }


def _at_most_0(logprobs: Sequence[float]) -> Sequence[float]:
    """Engines round: the logarithm of 1 may be a little above 0."""
    return logprobs if max(logprobs) <= 0.0 else [min(value, 0.0) for value in logprobs]


def _versions(call: RecordedCall, choice: SampledChoice) -> list[pb.TokenVersions]:
    """As the engine told them; where it did not, the oldest that may have sampled: staleness is bounded by
    it."""
    num_tokens = len(choice.token_ids)
    spans = choice.spans
    edges = [0, *(span.end for span in spans)]
    if [span.start for span in spans] != edges[:-1] or edges[-1] != num_tokens:
        oldest = min(call.digests)
        return [pb.TokenVersions(version=oldest, weights_digest=call.digests[oldest], num_tokens=num_tokens)]
    return [
        pb.TokenVersions(
            version=span.version,
            weights_digest=call.digests.get(span.version, ""),
            num_tokens=span.end - span.start,
        )
        for span in spans
    ]


def body_to_wire(session: Session, calls: Sequence[StoredCall]) -> pb.TrajectoryBody:
    """The trajectory of a session: its calls in rows, each row's turns one after another."""
    turns = [pb.Turn.FromString(call.turn) for call in calls]
    first, last = calls[0], max(calls, key=lambda call: call.ended_at)
    body = pb.TrajectoryBody(
        episode=identity_to_wire(identity_of(session)),
        prompt=map(message_to_wire, first.messages),
        temperature=first.temperature,
        started_at=timestamp(first.started_at),
        ended_at=timestamp(last.ended_at),
        tools_json=first.tools_json,
        stop_reason=pb.STOP_REASON_ANSWERED,
    )
    for row in rows_of([CallTokens(turn.new_prompt_ids, turn.sampled_ids) for turn in turns]):
        _continue_row(calls, turns, row)
        for position in row:
            turn, call = turns[position], calls[position]
            turn.started_s = (call.started_at - first.started_at).total_seconds()
            if call.temperature != first.temperature:
                turn.num_inserted = len(turn.sampled_ids)
            body.turns.append(turn)
    body.turns[0].restarts_context = False
    del body.turns[0].new_messages[:]
    _end(body, turns[calls.index(last)])
    if session.unrecorded_calls:
        _cut(body, session.unrecorded_calls)
    return body


def _cut(body: pb.TrajectoryBody, unrecorded_calls: int) -> None:
    """Its reward is of more than is here, so no token of it trains."""
    body.stop_reason, body.unrecorded_calls = pb.STOP_REASON_RECORDING_LIMIT, unrecorded_calls
    for turn in body.turns:
        turn.inserted_start, turn.num_inserted = 0, len(turn.sampled_ids)


def _continue_row(calls: Sequence[StoredCall], turns: Sequence[pb.Turn], row: Sequence[int]) -> None:
    """Leaves in each turn what is new in it: tokens, and messages. Results of tools go to the turn that
    called."""
    turns[row[0]].new_messages.extend(map(message_to_wire, calls[row[0]].messages))
    known = len(turns[row[0]].new_prompt_ids) + len(turns[row[0]].sampled_ids)
    for before, position in pairwise(row):
        turn = turns[position]
        new_ids = turn.new_prompt_ids[known:]
        known = len(turn.new_prompt_ids) + len(turn.sampled_ids)
        del turn.new_prompt_ids[:]
        turn.new_prompt_ids.extend(new_ids)
        turn.restarts_context = False
        for message in calls[position].messages[len(calls[before].messages) :]:
            if message.get("role") == "tool":
                result = turns[before].tool_results.add()
                result.call_id, result.content = str(message.get("tool_call_id") or ""), text_of(message)
            elif message.get("role") != "assistant":
                turn.new_messages.append(message_to_wire(message))


def _end(body: pb.TrajectoryBody, last: pb.Turn) -> None:
    body.answer = last.text
    if last.finish_reason == pb.FINISH_REASON_LENGTH:
        body.stop_reason = pb.STOP_REASON_MAX_TOKENS
    versions = [span.version for turn in body.turns for span in turn.versions]
    if versions:
        body.sampled_by.oldest, body.sampled_by.newest = min(versions), max(versions)


def message_to_wire(message: Mapping[str, Any]) -> pb.Message:
    """A message of a request. What is no text in it, such as an image, is left out."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        calls.append(
            pb.ToolCall(
                call_id=str(call.get("id") or ""),
                name=str(function.get("name") or ""),
                arguments_json=str(function.get("arguments") or ""),
            )
        )
    return pb.Message(
        role=str(message.get("role") or ""),
        content=text_of(message),
        tool_calls=calls,
        tool_call_id=str(message.get("tool_call_id") or ""),
        name=str(message.get("name") or ""),
    )


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content may be a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")


def opened_to_wire(session: Session) -> pb_events.RecordedSessionOpened:
    """The ledger counts it as requested."""
    return pb_events.RecordedSessionOpened(
        episode=identity_to_wire(identity_of(session)), opened_at=timestamp(session.opened_at)
    )


def recorded_to_wire(body: pb.TrajectoryBody, ref: BlobRef) -> pb_events.TrajectoryRecorded:
    """The fact that the body is stored: equal for every replica that closes the session."""
    return pb_events.TrajectoryRecorded(
        episode=body.episode,
        body=blob_to_wire(ref),
        sampled_by=body.sampled_by if body.HasField("sampled_by") else common_pb2.VersionSpan(),
        stop_reason=body.stop_reason,
        num_turns=len(body.turns),
        num_sampled_tokens=sum(len(turn.sampled_ids) for turn in body.turns),
        recorded_at=body.ended_at,
    )


def expired_to_wire(session: Session, reason: str, at: datetime) -> pb_events.RecordedSessionExpired:
    """No reward came in time."""
    return pb_events.RecordedSessionExpired(
        episode=identity_to_wire(identity_of(session)), reason=reason, expired_at=timestamp(at)
    )


def grade_to_wire(session: Session, reward: SessionReward) -> GradeSessionRequest:
    """What the reward grader is asked."""
    return GradeSessionRequest(
        session_id=session.session_id,
        key_id=session.key_id,
        score=reward.result.score,
        success=reward.result.success,
        subscores=map(_subscore_to_wire, reward.result.subscores),
        group=reward.group,
        split=SPLIT_NUMBERS[reward.split],
    )


def _subscore_to_wire(node: SubScore) -> pb.Subscore:
    return pb.Subscore(
        name=node.name,
        weight=node.weight,
        value=node.value,
        info=json.dumps(dict(node.info)) if node.info else "",
        children=map(_subscore_to_wire, node.children),
    )
