"""Plays one task over a control channel: prompt, turns, grade. A failure of the environment is a value."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from upcycle.environment.channel import ChannelClosed, ChannelError, ControlChannel
from upcycle.environment.channel.client import AskJudge, ChannelTimeout
from upcycle.environment.foreign_tools import attached_tools, call_attached
from upcycle.environment.tools import Tool, ToolResult, ToolSpec
from upcycle.errors import InfrastructureError, RewardInvalid, ToolFailed, UpcycleError
from upcycle.harness import Ending, TakenTurn, ToolCall, ToolOutcome, TurnLimits, play_turns
from upcycle.harness.chat import ChatDriver, ChatPlayer, EpisodeWatcher, TokenBudgets
from upcycle.rewards import EvaluationResult, evaluation_result, foreign_result
from upcycle.states import ReadState, StateEntry, read_states
from upcycle.task_rows import Task
from upcycle.transcripts import ToolUse, Transcript, Turn

T = TypeVar("T")

MAX_TURNS: Final = 32
"""More than a run's default (8): a person looks around."""


@dataclass(frozen=True, slots=True)
class PlayLimits:
    """Budgets of the player, and how long the environment's own code may take: seconds as on the platform."""

    turns: TurnLimits = field(default_factory=lambda: TurnLimits(MAX_TURNS))
    tokens: TokenBudgets = field(default_factory=TokenBudgets)
    start_s: float = 30.0
    tool_s: float = 30.0
    grade_s: float = 50.0
    tool_result_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True)
class PlayFailure:
    """What the environment failed with. during: prompt, tools, grade, or which tool. kind: the word of
    docs/reference/failures.md."""

    during: str
    kind: str
    message: str
    traceback: str = ""

    def to_json(self) -> dict[str, str]:
        """All fields."""
        return {
            "during": self.during,
            "kind": self.kind,
            "message": self.message,
            "traceback": self.traceback,
        }


@dataclass(slots=True)
class PlayedEpisode:
    """What happened. result: None where the environment failed, and `failure` says how."""

    task: Task
    prompt: list[Mapping[str, Any]] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    messages: list[Mapping[str, Any]] = field(default_factory=list)
    turns: list[TakenTurn] = field(default_factory=list)
    ending: Ending | None = None
    result: EvaluationResult | None = None
    failure: PlayFailure | None = None
    seconds: float = 0.0
    first_state: StateEntry | None = None
    last_state: StateEntry | None = None

    @property
    def states(self) -> list[ReadState]:
        """Of the environment: at the prompt, after each call, before the grade; none where it declares
        none."""
        after = [outcome.state for turn in self.turns for outcome in turn.outcomes]
        return read_states(one for one in (self.first_state, *after, self.last_state) if one is not None)

    @property
    def transcript(self) -> Transcript:
        """What a scenario grades beside the answer."""
        return Transcript(tuple(map(_turn, self.turns)))

    @property
    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.transcript.to_json()["turns"]
        return rows

    def to_json(self) -> dict[str, Any]:
        """The trajectory as one JSON object."""
        result, ending = self.result, self.ending
        return {
            "task": self.task.to_json(),
            "messages": self.messages or self.prompt,
            "tools": self.tools,
            "turns": [_noted(row, turn) for row, turn in zip(self._rows, self.turns, strict=True)],
            "stop_reason": str(ending.stop_reason) if ending else "failed",
            "answer": ending.answer if ending else "",
            "reward": result.score if result else None,
            "success": result.success if result else None,
            "subscores": [one.to_json() for one in result.subscores] if result else [],
            "info": dict(result.info) if result else {},
            "failure": self.failure.to_json() if self.failure else None,
            "states": [asdict(state) for state in self.states],
            "seconds": round(self.seconds, 3),
        }


class EpisodeOpened(EpisodeWatcher):
    """Sees also the prompt and the tools, before the first turn."""

    def on_opened(self, episode: PlayedEpisode) -> None:
        """The scenario yielded its prompt, and the environment listed its tools."""


class _Broke(Exception):
    """The environment failed."""

    def __init__(self, failure: PlayFailure) -> None:
        self.failure = failure


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An environment that answers. ended_how: says how its process ended, after it left the channel; judge:
    asks what the scenario's judges ask, outside the environment."""

    channel: ControlChannel
    ended_how: Callable[[], Awaitable[str]]
    judge: AskJudge | None = None


async def play_episode(
    task: Task, environment: OpenEnvironment, player: ChatPlayer, limits: PlayLimits, watcher: EpisodeOpened
) -> PlayedEpisode:
    """Play one task.

    Raises what the player raises; what the environment does wrong is in the result."""
    episode, started_s = PlayedEpisode(task), time.monotonic()
    try:
        async with AsyncExitStack() as stack:
            await _EpisodePlay(episode, environment, limits, stack).play(player, watcher)
    except _Broke as broke:
        episode.failure = broke.failure
    finally:
        episode.seconds = time.monotonic() - started_s
    return episode


class _EpisodePlay:
    """stack: holds the MCP servers of a foreign environment, where its tools are."""

    def __init__(
        self, episode: PlayedEpisode, environment: OpenEnvironment, limits: PlayLimits, stack: AsyncExitStack
    ) -> None:
        self._episode = episode
        self._stack = stack
        self._foreign: Mapping[str, Tool] = {}
        self._channel = environment.channel
        self._limits = limits
        self._ended_how = environment.ended_how
        self._judge = environment.judge

    async def play(self, player: ChatPlayer, watcher: EpisodeOpened) -> None:
        episode, limits, task = self._episode, self._limits, self._episode.task
        if self._is_foreign:
            await self._attach()
        start = self._channel.start(task.scenario, task.args, timeout_s=limits.start_s)
        episode.prompt = _messages(await self._guarded("prompt", start))
        episode.first_state = self._channel.first_state
        episode.tools = [_spec(one.to_json()) for one in await self._tools()]
        watcher.on_opened(episode)
        driver = ChatDriver(
            episode.prompt, episode.tools, player, self._call, budgets=limits.tokens, watcher=watcher
        )
        episode.messages, episode.turns = driver.messages, driver.turns
        episode.ending = await play_turns(driver, limits.turns)
        episode.last_state = await self._guarded("state", self._channel.last_state(timeout_s=limits.tool_s))
        transcript = episode.transcript.to_json()
        grade = self._channel.grade(
            episode.ending.answer, transcript, timeout_s=limits.grade_s, judge=self._judge
        )
        row = await self._guarded("grade", grade)
        try:
            episode.result = foreign_result(row) if self._is_foreign else evaluation_result(row)
        except InfrastructureError as error:
            raise _Broke(PlayFailure("grade", error.kind, str(error))) from error
        except (TypeError, ValueError) as error:
            raise _Broke(PlayFailure("grade", RewardInvalid.kind, str(error))) from error

    @property
    def _is_foreign(self) -> bool:
        welcome = self._channel.welcome
        return welcome is not None and not welcome.speaks_tools

    async def _attach(self) -> None:
        """As the platform does, before the scenario starts."""
        channel, bindings = self._channel, self._channel.welcome.bindings if self._channel.welcome else ()
        try:
            self._foreign = await attached_tools(channel.url, bindings, self._stack)
        except (ToolFailed, ChannelError) as error:
            raise _Broke(PlayFailure("tools", InfrastructureError.kind, str(error))) from error

    async def _tools(self) -> list[ToolSpec]:
        if self._is_foreign:
            return [tool.spec for tool in self._foreign.values()]
        return list(await self._guarded("tools", self._channel.list_tools(timeout_s=self._limits.start_s)))

    async def _call(self, call: ToolCall) -> ToolOutcome:
        started_s = time.monotonic()
        called = self._called_foreign(call) if self._is_foreign else self._called(call)
        try:
            result = await self._guarded(f"tool {call.name}", called)
        except _Broke as broke:
            cause = broke.__cause__
            if not isinstance(cause, ChannelError) or cause.error_kind == InfrastructureError.kind:
                raise
            return ToolOutcome(str(cause), is_error=True)  # an unknown tool: the player reads it and goes on
        took_s = time.monotonic() - started_s
        return ToolOutcome(result.text, result.is_error, took_s, result.state, result.images)

    def _called(self, call: ToolCall) -> Awaitable[ToolResult]:
        limits = self._limits
        return self._channel.call_tool(
            call.name, call.arguments, timeout_s=limits.tool_s, max_bytes=limits.tool_result_bytes
        )

    async def _called_foreign(self, call: ToolCall) -> ToolResult:
        """Raises ChannelTimeout, as a tool that is called over the channel."""
        tool, limits = self._foreign.get(call.name), self._limits
        limit_s = tool.spec.timeout_s if tool and tool.spec.timeout_s else limits.tool_s
        try:
            async with asyncio.timeout(limit_s):
                return await call_attached(self._foreign, limits.tool_result_bytes, call.name, call.arguments)
        except TimeoutError as error:
            raise ChannelTimeout(f"tool {call.name} got no answer within {limit_s:g} s") from error

    async def _guarded(self, during: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except ChannelError as error:
            kind = error.error_kind or "scenario_error"
            raise _Broke(PlayFailure(during, kind, str(error), error.traceback)) from error
        except ChannelTimeout as error:
            raise _Broke(PlayFailure(during, "timeout", str(error))) from error
        except ChannelClosed as error:
            raise _Broke(PlayFailure(during, "process_ended", await self._ended_how())) from error
        except UpcycleError as error:
            raise _Broke(PlayFailure(during, error.kind, str(error))) from error


def _messages(prompt: str | list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _spec(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": dict(row)}


def _noted(row: dict[str, Any], taken: TakenTurn) -> dict[str, Any]:
    return {**row, "restarts_context": True} if taken.restarts_context else row


def _turn(taken: TakenTurn) -> Turn:
    pairs = zip(taken.said.tool_calls, taken.outcomes, strict=False)
    calls = (ToolUse(call.name, call.arguments, done.content, done.is_error) for call, done in pairs)
    return Turn(taken.said.text, tuple(calls), taken.said.reasoning)
