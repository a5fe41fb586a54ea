"""One line of `trajectories.jsonl` as an episode of a page."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.external_rows import finite_number
from upcycle.run_pages.texts import kept
from upcycle.run_pages.values import Message, ShownCall, ShownEpisode, ShownGrade, ShownTurn
from upcycle.viewing.bodies import MAX_DETAIL_CHARS, MAX_GRADES
from upcycle.wording import amount

_SAID_FIRST: Final = ("system", "developer", "user")


def shown_line(row: EpisodeRow, why: str, line: Mapping[str, Any]) -> ShownEpisode:
    """The whole of it, cut as a page shows it. Raises what `episode_row_of` raises."""
    turns, seconds = amount(row.num_turns, "turn"), f"{line.get('seconds', 0)} s"
    words = (turns, str(line.get("stop_reason") or ""), seconds)
    return ShownEpisode(
        row=row,
        why=why,
        words=tuple(word for word in words if word),
        prompt=tuple(_prompt(line)),
        turns=tuple(_turn(turn) for turn in line["turns"]),
        answer=kept(_text(line.get("answer"))),
        grades=tuple(_grades(line.get("subscores") or ())),
        detail=kept(_detail(line), MAX_DETAIL_CHARS),
        states=tuple(kept(_state(one)) for one in line.get("states") or ()),
    )


def _prompt(line: Mapping[str, Any]) -> Iterator[Message]:
    """The messages before the agent's first."""
    for message in line.get("messages") or ():
        if not isinstance(message, Mapping) or message.get("role") not in _SAID_FIRST:
            return
        yield Message(str(message["role"]), kept(_text(message.get("content"))))


def _turn(turn: Mapping[str, Any]) -> ShownTurn:
    calls = tuple(
        ShownCall(
            str(call["name"]),
            kept(_text(call.get("arguments"))),
            kept(_text(call.get("result"))),
            bool(call.get("is_error")),
        )
        for call in turn.get("tool_calls") or ()
    )
    return ShownTurn(kept(_text(turn.get("text"))), calls, reasoning=kept(_text(turn.get("reasoning"))))


def _state(state: Mapping[str, Any]) -> str:
    note = state.get("note")
    return f"state: {note or json.dumps(state.get('value'), ensure_ascii=False)}"


def _grades(subscores: Any) -> Iterator[ShownGrade]:
    """The reward tree from its top, at most MAX_GRADES of it."""
    left = [(0, one) for one in reversed(subscores)]
    for _ in range(MAX_GRADES):
        if not left:
            return
        depth, one = left.pop()
        info = kept(_text(one.get("info"))) if one.get("info") else ""
        weight = finite_number(one.get("weight", 1.0), "a weight")
        yield ShownGrade(depth, str(one["name"]), finite_number(one["value"], "a subscore"), weight, info)
        left += [(depth + 1, child) for child in reversed(one.get("children") or ())]


def _detail(line: Mapping[str, Any]) -> str:
    """Of a failure: what it was, with the traceback and what the episode printed, as far as it is known."""
    if said := line.get("failure_detail"):
        return str(said)
    failure = line.get("failure")
    if not isinstance(failure, Mapping):
        return ""
    parts = (f"{failure.get('during', '')}: {failure.get('message', '')}", failure.get("traceback") or "")
    return "\n".join(str(part) for part in parts if part)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
