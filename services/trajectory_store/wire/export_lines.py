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
    read; the last is the digest of the task, by which SFT on the line refuses what is held out."""
    grade, identity = episode.grade, episode.identity
    return _line(
        {
            "prompt": [prompt_message(message) for message in body.prompt],
            "completion": [message for turn in body.turns for message in turn_messages(turn)],
            "reward": None if grade is None else grade.reward,
            "task": identity.task_digest if isinstance(identity, EpisodeIdentity) else None,
        }
    )


def record_line(episode: Episode, body: TrajectoryBody) -> bytes:
    """`{"summary", "body"}`: both as the API shows them, tokens and log-probabilities included."""
    return _line({"summary": _plain(summary_to_wire(episode)), "body": _plain(body)})


def _plain(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"
