"""JSON lines of an export: training triples, or whole records."""

from typing import Any

import orjson
from google.protobuf import json_format

from trajectory_store import wire
from trajectory_store.domain import Episode
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


def triple_line(episode: Episode, body: TrajectoryBody) -> bytes:
    """`{"prompt", "completion", "reward"}`: both in the conversational form that trainers read."""
    grade = episode.grade
    return _line(
        {
            "prompt": [{"role": message.role, "content": message.content} for message in body.prompt],
            "completion": list(_completion(body)),
            "reward": None if grade is None else grade.reward,
        }
    )


def record_line(episode: Episode, body: TrajectoryBody) -> bytes:
    """`{"summary", "body"}`: both as the API shows them, tokens and log-probabilities included."""
    return _line({"summary": _plain(wire.summary_to_wire(episode)), "body": _plain(body)})


def _completion(body: TrajectoryBody) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in body.turns:
        said: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.tool_calls:
            said["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments_json},
                }
                for call in turn.tool_calls
            ]
        messages.append(said)
        messages += [
            {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
            for result in turn.tool_results
        ]
    return messages


def _plain(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"
