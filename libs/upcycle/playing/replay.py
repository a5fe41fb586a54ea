"""Plays a recorded episode again: the same start, the same tool calls, the same answer, and a new grade.

What the environment says is compared with what was recorded. Where it differs nothing is graded: the answer
belongs to another conversation.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import InfrastructureError
from upcycle.guidance import guided_prompt
from upcycle.harness import ToolCall
from upcycle.harness.turns import is_same_text
from upcycle.playing.environment_calls import (
    EnvironmentCalls,
    EnvironmentFailed,
    OpenEnvironment,
    PlayFailure,
    PlayLimits,
)
from upcycle.playing.recorded import RecordedCall, RecordedEpisode
from upcycle.rewards import EvaluationResult
from upcycle.states import ReadState, StateEntry, read_states
from upcycle.task_rows import Task

_TOOL: Final = "tool "


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """Where a replay first said something else. place: such as `call 3, stock in turn 2`."""

    place: str
    recorded: str
    now: str


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """What counts as a difference. with_states: the environment's states, too. ignored: what prompts and
    results may differ in, such as a time that a tool took."""

    with_states: bool = True
    ignored: re.Pattern[str] | None = None

    def is_same(self, read: str, now: str) -> bool:
        """Whether what the policy read is what its environment says now, which its loop may have clipped."""
        if is_same_text(read, now):
            return True
        return self.ignored is not None and self.ignored.sub("", read) == self.ignored.sub("", now)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One of the three."""

    result: EvaluationResult | None = None
    difference: ReplayDifference | None = None
    failure: PlayFailure | None = None


class _Differs(Exception):
    def __init__(self, place: str, recorded: str, now: str) -> None:
        super().__init__(place)
        self.difference = ReplayDifference(place, recorded, now)


async def replay_episode(
    recorded: RecordedEpisode,
    task: Task,
    environment: OpenEnvironment,
    limits: PlayLimits,
    rules: ReplayRules = ReplayRules(),
) -> Replayed:
    """One episode, in an environment that was not used before."""
    try:
        async with AsyncExitStack() as stack:
            replay = _Replay(recorded, EnvironmentCalls(environment, limits, stack), rules)
            return Replayed(result=await replay.run(task))
    except _Differs as differs:
        return Replayed(difference=differs.difference)
    except EnvironmentFailed as failed:
        return Replayed(failure=failed.failure)


class _Replay:
    def __init__(self, recorded: RecordedEpisode, calls: EnvironmentCalls, rules: ReplayRules) -> None:
        self._recorded = recorded
        self._calls = calls
        self._rules = rules
        self._states: list[tuple[str, StateEntry]] = []

    async def run(self, task: Task) -> EvaluationResult:
        recorded, calls = self._recorded, self._calls
        self._check_prompt(await calls.start(task))
        self._note("the prompt", calls.first_state)
        await calls.tools()  # whose own time limits the channel learns from the list
        for number, call in enumerate(recorded.calls, start=1):
            await self._call(f"call {number}, {call.name} in turn {call.turn}", call)
        self._note("the last turn", await calls.last_state())
        if self._rules.with_states:
            self._check_states()
        return await calls.grade(recorded.answer, recorded.transcript)

    def _check_prompt(self, prompt: list[Mapping[str, Any]]) -> None:
        recorded = self._recorded
        given: Sequence[Mapping[str, Any]] = prompt
        if recorded.guidance:
            given = _guided(prompt, recorded.guidance)
        if not recorded.begins_with(given, self._rules.is_same):
            before = recorded.messages[: max(1, len(given))]
            raise _Differs("the prompt", _text(before), _text(given))

    async def _call(self, place: str, call: RecordedCall) -> None:
        try:
            outcome = await self._calls.call(ToolCall(call.name, dict(call.arguments)))
        except EnvironmentFailed as failed:
            failure = failed.failure
            if not failure.during.startswith(_TOOL) or failure.kind == InfrastructureError.kind:
                raise
            raise _Differs(place, call.result, f"{failure.kind}: {failure.message}") from failed
        if not self._rules.is_same(call.result, outcome.content):
            raise _Differs(place, call.result, outcome.content)
        if outcome.is_error != call.is_error:
            raise _Differs(place, _kind(call.is_error), _kind(outcome.is_error))
        self._note(place, outcome.state)

    def _note(self, place: str, state: StateEntry | None) -> None:
        if state is not None:
            self._states.append((place, state))

    def _check_states(self) -> None:
        """One that either side left out, with a note, says nothing."""
        now = read_states(state for _, state in self._states)
        for (place, _), before, after in zip(self._states, self._recorded.states, now, strict=False):
            if not (before.note or after.note) and before.value != after.value:
                raise _Differs(f"the state after {place}", _shown(before), _shown(after))
        if self._recorded.states and len(now) != len(self._recorded.states):
            raise _Differs("how many states there are", str(len(self._recorded.states)), str(len(now)))


def _guided(prompt: Sequence[Mapping[str, Any]], guidance: str) -> Sequence[Mapping[str, Any]]:
    """As the policy read it: the scenario made the guidance of an attempt that is not played again."""
    guided = guided_prompt([dict(one) for one in prompt], guidance)
    return [] if isinstance(guided, str) else guided


def _kind(is_error: bool) -> str:
    return "an error with this text" if is_error else "a result with this text"


def _shown(state: ReadState) -> str:
    return str(state.value)


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(f"{one.get('role')}: {one.get('content')}" for one in messages)
