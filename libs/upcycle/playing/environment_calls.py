"""What an episode asks of its environment, over a control channel: prompt, tools, calls, state, grade."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, TypeVar

from upcycle.environment.channel import ChannelClosed, ChannelError, ControlChannel
from upcycle.environment.channel.client import AskJudge, ChannelTimeout
from upcycle.environment.channel.frames import FRAME_TOO_LARGE
from upcycle.environment.foreign_tools import attached_tools, call_attached
from upcycle.environment.tools import Tool, ToolResult, ToolSpec
from upcycle.errors import InfrastructureError, RewardInvalid, ToolFailed, UpcycleError
from upcycle.harness import ToolCall, ToolOutcome, TurnLimits
from upcycle.harness.chat import TokenBudgets
from upcycle.rewards import EvaluationResult, evaluation_result, foreign_result
from upcycle.states import StateEntry
from upcycle.task_rows import Task

T = TypeVar("T")

_TOOL: Final = "tool "
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


class EnvironmentFailed(Exception):
    """The environment failed."""

    def __init__(self, failure: PlayFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class OpenEnvironment:
    """An environment that answers. ended_how: says how its process ended, after it left the channel; judge:
    asks what the scenario's judges ask, outside the environment."""

    channel: ControlChannel
    ended_how: Callable[[], Awaitable[str]]
    judge: AskJudge | None = None


class EnvironmentCalls:
    """The calls of one episode, each with its deadline. Each raises EnvironmentFailed."""

    def __init__(self, environment: OpenEnvironment, limits: PlayLimits, stack: AsyncExitStack) -> None:
        """stack: holds the MCP servers of a foreign environment, where its tools are."""
        self._stack = stack
        self._foreign: Mapping[str, Tool] = {}
        self._channel = environment.channel
        self._limits = limits
        self._ended_how = environment.ended_how
        self._judge = environment.judge
        self._task: Task | None = None

    @property
    def first_state(self) -> StateEntry | None:
        """At the prompt; None where the environment declares none."""
        return self._channel.first_state

    async def start(self, task: Task) -> list[Mapping[str, Any]]:
        """Play the scenario to its prompt."""
        if self._is_foreign:
            await self._attach()
        self._task = task
        start = self._channel.start(task.scenario, task.args, timeout_s=self._limits.start_s)
        return _messages(await self._guarded("prompt", start))

    async def tools(self) -> list[Mapping[str, Any]]:
        """As function specs of the OpenAI form."""
        return [_spec(one.to_json()) for one in await self._listed()]

    async def call(self, call: ToolCall) -> ToolOutcome:
        """Call a tool; what it refuses or raises is an outcome, and so is a name that none has."""
        started_s = time.monotonic()
        called = self._called_foreign(call) if self._is_foreign else self._called(call)
        try:
            result = await self._guarded(f"{_TOOL}{call.name}", called)
        except EnvironmentFailed as failed:
            cause = failed.__cause__
            if not isinstance(cause, ChannelError) or cause.error_kind == InfrastructureError.kind:
                raise
            return ToolOutcome(str(cause), is_error=True)  # an unknown tool: the player reads it and goes on
        took_s = time.monotonic() - started_s
        return ToolOutcome(result.text, result.is_error, took_s, result.state, result.images)

    async def last_state(self) -> StateEntry | None:
        """Before the grade."""
        return await self._guarded("state", self._channel.last_state(timeout_s=self._limits.tool_s))

    async def grade(self, answer: str, transcript: Mapping[str, Any]) -> EvaluationResult:
        """What the scenario says of the answer, and of the transcript that led to it."""
        asked = self._channel.grade(answer, transcript, timeout_s=self._limits.grade_s, judge=self._judge)
        row = await self._guarded("grade", asked)
        try:
            return foreign_result(row) if self._is_foreign else evaluation_result(row)
        except InfrastructureError as error:
            raise EnvironmentFailed(PlayFailure("grade", error.kind, str(error))) from error
        except (TypeError, ValueError) as error:
            raise EnvironmentFailed(PlayFailure("grade", RewardInvalid.kind, str(error))) from error

    def _ran(self, during: str) -> str:
        """`scenario 'ask' (env.py)`: whose code ran, and its file."""
        task = self._task
        file = PurePath(task.environment.path).name if task is not None else ""
        who = f"tool {during.removeprefix(_TOOL)!r}" if during.startswith(_TOOL) else ""
        who = who or (f"scenario {task.scenario!r}" if task is not None else "its environment")
        return f"{who} ({file})" if file else who

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
            raise EnvironmentFailed(PlayFailure("tools", InfrastructureError.kind, str(error))) from error

    async def _listed(self) -> list[ToolSpec]:
        if self._is_foreign:
            return [tool.spec for tool in self._foreign.values()]
        return list(await self._guarded("tools", self._channel.list_tools(timeout_s=self._limits.start_s)))

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
            kind, said = error.error_kind or "scenario_error", str(error)
            if kind == FRAME_TOO_LARGE:
                said = f"{self._ran(during)}: {said}"
            raise EnvironmentFailed(PlayFailure(during, kind, said, error.traceback)) from error
        except ChannelTimeout as error:
            raise EnvironmentFailed(PlayFailure(during, "timeout", str(error))) from error
        except ChannelClosed as error:
            said = f"{self._ran(during)}: {await self._ended_how()}"
            raise EnvironmentFailed(PlayFailure(during, "process_ended", said)) from error
        except UpcycleError as error:
            raise EnvironmentFailed(PlayFailure(during, error.kind, str(error))) from error


def _messages(prompt: str | list[dict[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _spec(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": dict(row)}
