"""What an agent did and answered: the transcript of an episode, and the answer that a scenario grades."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call of the agent with what it got back."""

    name: str
    arguments: Mapping[str, Any]
    result: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One completion of the agent: its text and the tools it called. reasoning: what came before the text
    between the markers of the agent's template; empty where nothing did."""

    text: str
    tool_calls: tuple[ToolUse, ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything the agent did between the two yields, oldest first. states: what `@env.state()` returned at
    the prompt, after each tool call and before the grade; None for one that was left out."""

    turns: tuple[Turn, ...] = ()
    states: tuple[Any, ...] = ()

    @property
    def tool_calls(self) -> tuple[ToolUse, ...]:
        """All tool calls of all turns, in order."""
        return tuple(call for turn in self.turns for call in turn.tool_calls)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "Transcript":
        """From `{"turns": [{"text", "tool_calls": [{"name", "arguments", "result", "is_error"}]}]}`."""
        return cls(tuple(_turn(turn) for turn in row.get("turns", ())))

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return {"turns": [_turn_row(turn) for turn in self.turns]}


class Answer(str):
    """What the agent answered: the final text, with the `trajectory` that led to it. value: the answer before
    it became text, where it was JSON."""

    trajectory: Transcript
    value: Any

    def __new__(cls, value: Any, trajectory: Transcript | None = None) -> "Answer":
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        answer = super().__new__(cls, text)
        answer.value = value
        answer.trajectory = trajectory or Transcript()
        return answer


def _turn(row: Mapping[str, Any]) -> Turn:
    calls = tuple(
        ToolUse(
            call["name"], call.get("arguments", {}), call.get("result", ""), bool(call.get("is_error", False))
        )
        for call in row.get("tool_calls", ())
    )
    return Turn(row.get("text", ""), calls, row.get("reasoning", ""))


def _turn_row(turn: Turn) -> dict[str, Any]:
    calls = [
        {
            "name": call.name,
            "arguments": dict(call.arguments),
            "result": call.result,
            "is_error": call.is_error,
        }
        for call in turn.tool_calls
    ]
    apart = {"reasoning": turn.reasoning} if turn.reasoning else {}
    return {"text": turn.text, "tool_calls": calls, **apart}
