"""A graded trajectory as it was recorded: what was asked, called, read and answered, and what it earned."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from upcycle.harness.turns import was_refused
from upcycle.images import text_of_content
from upcycle.reporting.external_rows import finite_number, flat_subscores
from upcycle.states import ReadState
from upcycle.trajectory_lines.reading import WAY_OUT, NoTrajectories

BY_THE_GRADE: Final = ("", "answer_error")
"""Failures of a policy that let it answer. After any other one no scenario was asked for a grade."""
_FIELDS: Final = ("text", "tool_calls", "reasoning")


IsSame = Callable[[str, str], bool]
"""Whether what a policy read is what its environment says now."""


@dataclass(frozen=True, slots=True)
class StoredGrade:
    """subscores: by path, as `style/length`."""

    reward: float
    success: bool
    subscores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One tool call, and what the policy read of it. turn: from 1."""

    turn: int
    name: str
    arguments: Mapping[str, Any]
    result: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """turns: the rows of its transcript. states: those that have a value, or a note why they have none.
    policy_failure: why its reward is 0, where the policy caused a failure. source_digest: of the code that
    judged it; empty where the line does not say."""

    messages: Sequence[Mapping[str, Any]]
    turns: Sequence[Mapping[str, Any]]
    answer: str
    states: tuple[ReadState, ...]
    guidance: str
    grade: StoredGrade
    policy_failure: str = ""
    source_digest: str = ""

    @property
    def transcript(self) -> dict[str, Any]:
        """As a scenario reads it."""
        return {"turns": [{name: row[name] for name in _FIELDS if name in row} for row in self.turns]}

    def cut_at(self, share: float) -> "RecordedEpisode":
        """Its beginning: this share of its turns, at least one and never all, with what the policy had said
        last by then as its answer; of a single turn this share of what it said. States are left out."""
        if len(self.turns) < 2:
            turns = [{**row, "text": _beginning(row["text"], share)} for row in self.turns]
            return replace(self, turns=turns, answer=_beginning(self.answer, share), states=())
        kept = self.turns[: min(len(self.turns) - 1, max(1, int(len(self.turns) * share)))]
        said = (str(row["text"]) for row in reversed(kept))
        return replace(self, turns=kept, answer=next(filter(str.strip, said), ""), states=())

    @property
    def calls(self) -> Iterator[RecordedCall]:
        """Those that a tool ran, in their order."""
        for number, row in enumerate(self.turns, start=1):
            for position, call in enumerate(row.get("tool_calls") or ()):
                if not (call["is_error"] and was_refused(position, call["result"])):
                    yield RecordedCall(number, **call)

    def begins_with(self, prompt: Sequence[Mapping[str, Any]], is_same: IsSame) -> bool:
        """Whether its first messages, up to the policy's first turn, are these."""
        read, given = (list(map(_said, messages)) for messages in (self.messages, prompt))
        after = [role for role, _ in read[len(given) :]]
        return (
            len(read) >= len(given)
            and all(_is_same_message(*pair, is_same) for pair in zip(read, given, strict=False))
            and after[:1] in ([], ["assistant"])
        )


def _beginning(text: str, share: float) -> str:
    return text[: int(len(text) * share)]


def recorded_of(line: Mapping[str, Any], name: str) -> RecordedEpisode:
    """Of a line that has a reward. Raises NoTrajectories."""
    try:
        return RecordedEpisode(
            messages=[dict(one) for one in line["messages"]],
            turns=[_turn(row) for row in line["turns"]],
            answer=str(line.get("answer") or ""),
            states=tuple(ReadState(one["value"], str(one["note"])) for one in line.get("states") or ()),
            guidance=str(line.get("guidance") or ""),
            grade=grade_of(line),
            policy_failure=str(line.get("policy_failure") or ""),
            source_digest=str(line.get("source_digest") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise NoTrajectories(f"{name}: no graded trajectory: {said[:200]}", WAY_OUT) from error


def grade_of(line: Mapping[str, Any]) -> StoredGrade:
    """Raises what reading a line raises that is none."""
    subscores = {
        path: finite_number(value, "a subscore")
        for path, value in flat_subscores(line.get("subscores") or ())
    }
    return StoredGrade(finite_number(line["reward"], "reward"), line.get("success") is True, subscores)


def _turn(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "text": str(row.get("text", "")), "tool_calls": [_call(one) for one in row["tool_calls"]]}


def _call(one: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that are no object were none to the tool either."""
    arguments = one.get("arguments")
    return {
        "name": str(one["name"]),
        "arguments": dict(arguments) if isinstance(arguments, Mapping) else {},
        "result": str(one.get("result", "")),
        "is_error": one.get("is_error") is True,
    }


def _is_same_message(read: tuple[str, str], given: tuple[str, str], is_same: IsSame) -> bool:
    return read[0] == given[0] and is_same(read[1], given[1])


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    """Content parts count by their text, as the platform shows them to a policy."""
    return str(message.get("role")), text_of_content(message.get("content"))
