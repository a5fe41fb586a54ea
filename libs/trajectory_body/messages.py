"""Turns as messages in the form of OpenAI's API, which graders, exports and chat templates read."""

from collections.abc import Iterable
from typing import Any

from upcycle.api.trajectory.v1.trajectory_pb2 import ToolCall, Turn


def tool_calls(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    """The `tool_calls` of a message."""
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_json},
        }
        for call in calls
    ]


def turn_messages(turn: Turn) -> list[dict[str, Any]]:
    """What the policy said, then what each of its tools answered."""
    said: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.tool_calls:
        said["tool_calls"] = tool_calls(turn.tool_calls)
    answers = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
        for result in turn.tool_results
    ]
    return [said, *answers]
