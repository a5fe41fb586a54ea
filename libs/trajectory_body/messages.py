"""Prompts and turns as messages in the form of OpenAI's API: for graders, exports and chat templates."""

from collections.abc import Iterable
from typing import Any

from upcycle.api.trajectory.v1.trajectory_pb2 import Message, ToolCall, TrajectoryBody, Turn
from upcycle.harness.parsing import with_reasoning


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


def prompt_message(message: Message) -> dict[str, Any]:
    """One message of the scenario's prompt, without the fields that it leaves empty."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = tool_calls(message.tool_calls)
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    if message.name:
        shown["name"] = message.name
    return shown


def turn_messages(turn: Turn) -> list[dict[str, Any]]:
    """What the client of a recorded session said before the turn, the assistant's message with its reasoning
    as templates write it, then one message per tool result."""
    content = with_reasoning(turn.reasoning, turn.text)
    assistant: dict[str, Any] = {"role": "assistant", "content": content}
    if turn.tool_calls:
        assistant["tool_calls"] = tool_calls(turn.tool_calls)
    results = [
        {"role": "tool", "tool_call_id": result.call_id, "content": result.content}
        for result in turn.tool_results
    ]
    return [*map(prompt_message, turn.new_messages), assistant, *results]


def body_messages(body: TrajectoryBody) -> list[dict[str, Any]]:
    """The whole conversation: the prompt, then every turn."""
    prompt = [prompt_message(message) for message in body.prompt]
    return prompt + [message for turn in body.turns for message in turn_messages(turn)]
