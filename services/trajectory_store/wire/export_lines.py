"""JSON lines of an export: training triples, or whole records."""

from typing import Any

import orjson
from google.protobuf import json_format

from episodes import EpisodeIdentity
from trajectory_body import prompt_message, turn_messages
from trajectory_store.domain.ledger import Episode
from trajectory_store.wire.views import summary_to_wire
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


def triple_line(episode: Episode, body: TrajectoryBody) -> bytes:
    """`{"prompt", "completion", "reward", "task"}`: the first two in the conversational form that trainers
    read; the last is the digest of the task, by which SFT on the line refuses what is held out. Of a guided
    episode also `guided_after`: its prompt ends with help that the policy will not have. Of a recorded
    session also its `labels`, where its client gave any."""
    grade, identity = episode.grade, episode.identity
    planned = identity if isinstance(identity, EpisodeIdentity) else None
    line: dict[str, Any] = {
        "prompt": [prompt_message(message) for message in body.prompt],
        "completion": [message for turn in body.turns for message in turn_messages(turn)],
        "reward": None if grade is None else grade.reward,
        "task": planned.task_digest if planned is not None else None,
    }
    if planned is not None and planned.guided_after:
        line["guided_after"] = planned.guided_after
    if planned is not None and planned.labels:
        line["labels"] = list(planned.labels)
    return _line(line)


def record_line(episode: Episode, body: TrajectoryBody) -> bytes:
    """`{"summary", "body"}`: both as the API shows them, tokens and log-probabilities included."""
    return _line({"summary": _plain(summary_to_wire(episode)), "body": _plain(body)})


def _plain(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"
