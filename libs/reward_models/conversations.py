"""What a reward model reads of an episode: what the policy saw and wrote, and nothing of its grade.

`conversation_of` takes the messages and the tools of a trajectory's line, and of a message only the fields
that a chat template shows to the policy. Reward, success, subscores, answers of the task and notes of graders
stand in other fields, so they cannot enter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reward_models.errors import RewardModelRefused

_OF_A_MESSAGE: Final = ("role", "content", "tool_call_id", "name")


@dataclass(frozen=True, slots=True)
class EpisodeConversation:
    """name: by which a person finds the episode."""

    name: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class GradedConversation:
    """Training data. task: digest of its task, or its slug where a line has no digest."""

    conversation: EpisodeConversation
    task: str
    success: bool


def conversation_of(line: Mapping[str, Any], name: str) -> EpisodeConversation:
    """Of a line of a trajectories file. Raises RewardModelRefused for one without messages."""
    messages, tools = line.get("messages"), line.get("tools") or []
    for field, value in (("messages", messages), ("tools", tools)):
        if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
            raise RewardModelRefused(
                f"{name}: its {field} are no list of objects", "give a trajectories file"
            )
    if not messages:
        raise RewardModelRefused(f"{name} has no messages: there is nothing to read", "leave it out")
    return EpisodeConversation(name, [_message(one) for one in messages], tools)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {field: message[field] for field in _OF_A_MESSAGE if field in message}
    calls = message.get("tool_calls")
    return {**kept, "tool_calls": [_call(one) for one in calls]} if calls else kept


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    arguments = named.get("arguments")
    return {"type": "function", "function": {"name": named.get("name"), "arguments": arguments or {}}}
