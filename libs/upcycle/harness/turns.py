"""The turn loop: the policy takes a turn, its tool calls run in their order, it reads what came of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from upcycle.harness.parsing import AssistantTurn, ToolCall
from upcycle.images import Image, parts_of

UNREADABLE = (
    "Your last message could not be read: {error}. Send a well-formed tool call, or a plain final answer."
)
"""What a policy reads after a turn whose tool call is malformed."""
_REFUSED = "refused: more than {limit} tool calls in one turn"
_CUT = "\n[{more} more characters were cut]"


class StopReason(StrEnum):
    """Why the turns of an episode are over, where nothing failed."""

    ANSWERED = "answered"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The budgets that the loop keeps; those of tokens are the driver's, which counts them."""

    max_turns: int
    max_tool_calls_per_turn: int = 16
    max_tool_result_chars: int = 32_768


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What a policy reads of one tool call. is_error: the tool refused or raised. duration_s: as its
    environment measured it. state: of the environment after the call, as the driver has it; no policy reads
    it. images: for one that sees; the content names them."""

    content: str
    is_error: bool = False
    duration_s: float = 0.0
    state: Any = None
    images: tuple[Image, ...] = ()


@dataclass(slots=True)
class TakenTurn:
    """One turn of the policy; its outcomes are added as its calls end. was_cut: by length, so that it calls
    no tool and answers nothing. restarts_context: the context was compressed before it."""

    said: AssistantTurn
    was_cut: bool = False
    restarts_context: bool = False
    outcomes: list[ToolOutcome] = field(default_factory=list)

    @property
    def is_answer(self) -> bool:
        """A plain final answer: nothing to run, nothing to put right."""
        return not self.said.tool_calls and not self.said.parse_error


@dataclass(frozen=True, slots=True)
class Ending:
    """How the turns ended. answer: the last turn's text; empty where a budget cut the episode."""

    stop_reason: StopReason
    answer: str = ""


class TurnDriver(Protocol):
    """One episode's policy and tools, in tokens or in chat messages."""

    async def begin(self) -> None:
        """Take in the scenario's prompt."""
        ...

    async def take_turn(self, index: int) -> TakenTurn | None:
        """The policy's next turn; None when the episode's tokens are spent."""
        ...

    async def run_call(self, position: int, call: ToolCall) -> ToolOutcome:
        """Run a call of the last turn. position: its place in the turn, from 0."""
        ...

    def add_outcome(self, position: int, outcome: ToolOutcome) -> None:
        """Note what the policy will read of that call."""
        ...

    def observe(self, messages: Sequence[dict[str, Any]]) -> None:
        """The policy reads these messages, `{"role", "content"}`, before its next turn: one of role `tool`
        for each call of the last turn, in order, or one of role `user`."""
        ...


async def play_turns(driver: TurnDriver, limits: TurnLimits) -> Ending:
    """Play until the policy answers or a budget is spent. What the driver raises ends the episode."""
    await driver.begin()
    last: TakenTurn | None = None
    for index in range(limits.max_turns):
        if last is not None:
            driver.observe(observations_of(last))
        last = await driver.take_turn(index)
        if last is None or last.was_cut:
            return Ending(StopReason.MAX_TOKENS)
        await _run_calls(driver, last, limits)
        if last.is_answer:
            return Ending(StopReason.ANSWERED, last.said.text)
    return Ending(StopReason.MAX_TURNS)


async def _run_calls(driver: TurnDriver, turn: TakenTurn, limits: TurnLimits) -> None:
    """In the order of the calls, one after the other: a tool may need what an earlier one did."""
    for position, call in enumerate(turn.said.tool_calls):
        if position < limits.max_tool_calls_per_turn:
            ran = await driver.run_call(position, call)
            content = clip_text(ran.content, limits.max_tool_result_chars)
            outcome = replace(ran, content=content)
        else:
            refusal = _REFUSED.format(limit=limits.max_tool_calls_per_turn)
            outcome = ToolOutcome(refusal, is_error=True)
        turn.outcomes.append(outcome)
        driver.add_outcome(position, outcome)


def observations_of(turn: TakenTurn) -> list[dict[str, Any]]:
    """What the policy reads of a turn that was no answer: the results of its calls, or what is malformed."""
    if turn.said.parse_error:
        return [{"role": "user", "content": UNREADABLE.format(error=turn.said.parse_error)}]
    return [{"role": "tool", "content": parts_of(one.content, one.images)} for one in turn.outcomes]


def clip_text(text: str, max_chars: int) -> str:
    """`text`, or its beginning and how much was cut, so that no tool result can fill the episode's budget."""
    if len(text) <= max_chars:
        return text
    return text[:max_chars] + _CUT.format(more=len(text) - max_chars)


def was_refused(position: int, content: str) -> bool:
    """Whether this is what the policy read of a call that no tool ran, because its turn had too many.
    position: of the call in its turn, from 0."""
    return any(content == _REFUSED.format(limit=limit) for limit in range(1, position + 1))


def is_same_text(read: str, whole: str) -> bool:
    """Whether a policy that read `read` of a tool was told `whole`, which its loop may have clipped."""
    if read == whole:
        return True
    kept, _, _ = read.rpartition("\n[")
    return 0 < len(kept) < len(whole) and clip_text(whole, len(kept)) == read
