"""`Environment`: the one object an environment's author declares tools and scenarios on."""

import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from upcycle.environment.attaching import Attaching
from upcycle.environment.lifecycle import Lifecycle
from upcycle.environment.schema import call_schema
from upcycle.environment.tools import FunctionTool, Tool, ToolResult, no_result_within
from upcycle.errors import (
    ArgumentsInvalid,
    DefinitionError,
    InfrastructureError,
    ToolFailed,
    UnknownName,
    UpcycleError,
)
from upcycle.scenario import Scenario, ScenarioFunction, declare_scenario
from upcycle.states import StateLog
from upcycle.task_rows import EnvironmentRef, Task

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from upcycle.checking import OnTask, Validation

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger(__name__)

EXTERNAL_ERRORS: Final = (ConnectionError, InfrastructureError)
"""Exceptions of a scenario or tool that say: the outside failed, not the policy."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A capability an agent may reach through a tunnel, for example an MCP server. url:
    scheme://host:port/path.
    """

    name: str
    protocol: str
    url: str
    params: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The row of `hello`'s `bindings`."""
        return {"name": self.name, "protocol": self.protocol, "url": self.url, "params": dict(self.params)}


class Environment:
    """What an agent can do (tools) and what it is asked (scenarios).

    Declaring is all that happens at import: MCP servers are started by `open`, per episode process. Module
    state of the environment's file is private to an episode, because each episode, and each session of a
    served environment, is a forked process.
    version: free text, sent to who drives the environment. external_errors: exception types that say that
    something outside failed, such as a database; an episode in which one is raised is missing and played
    again. Any other exception after the answer is the policy's (docs/reference/failures.md). data: files and
    folders that belong to the environment's source, relative to its file, written as a literal list: an edit
    of one is an edit of the environment. Raises DefinitionError for an empty name, for an external_errors
    that is no tuple of exception types, and for a data that is no list of paths.

        env = Environment("incident")

        @env.tool()
        def search_logs(service: str) -> list[str]: ...

        @env.scenario("investigate")
        async def investigate(query: str):
            answer = yield f"Investigate: {query}"
            yield 1.0 if "pool" in answer else 0.0
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.1.0",
        external_errors: tuple[type[Exception], ...] = EXTERNAL_ERRORS,
        data: Sequence[str] = (),
    ) -> None:
        if not name or not isinstance(name, str):
            raise DefinitionError(f"environment name {name!r} is not a non-empty string")
        known: tuple[type[Exception], ...] = (InfrastructureError, *_exception_types(external_errors))
        self._external_errors = known
        self.name = name
        self.version = version
        self.data = _paths(data)
        # The file that declares the environment: a Task made from it records where to load it from.
        self.source = str(sys._getframe(1).f_globals.get("__file__", ""))
        self.scenarios: dict[str, Scenario] = {}
        self.bindings: dict[str, Binding] = {}
        self._tools: dict[str, Tool] = {}
        self._state: Callable[[], Any] | None = None
        self._lifecycle = Lifecycle()
        self.servers = Attaching()

    def tool(self, name: str | None = None, *, timeout_s: float | None = None) -> Callable[[F], F]:
        """Register a function as a tool; it stays callable as it is. name: by default the function's.

        timeout_s: how long one call may take, up to a day, wherever the environment runs; by default as long
        as that place allows (30 s). An episode's deadline ends a call before that.
        Raises DefinitionError for a signature that has no JSON schema, for a name that is taken, and for a
        timeout_s that is no number of seconds."""
        if callable(name):
            raise DefinitionError("@env.tool is missing its parentheses", "write @env.tool()")

        def register(function: F) -> F:
            _refuse_scenario(function)
            self._add_tool(FunctionTool.declare(function, name, timeout_s))
            return function

        return register

    def scenario(self, name: str | None = None) -> Callable[[ScenarioFunction], Scenario]:
        """Register a two-yield generator function; name: by default its own. Raises DefinitionError."""
        if callable(name):
            raise DefinitionError("@env.scenario is missing its parentheses", 'write @env.scenario("name")')

        def register(function: ScenarioFunction) -> Scenario:
            label = name or function.__name__
            if label in self.scenarios:
                raise DefinitionError(
                    f"environment {self.name!r} has two scenarios called {label!r}",
                    "give one of them another name",
                )
            declared = declare_scenario(function, label, EnvironmentRef(self.name, path=self.source))
            self.scenarios[label] = declared
            return declared

        return register

    def template(self, name: str | None = None) -> Callable[[ScenarioFunction], Scenario]:
        """The same as `scenario`, under the name other SDKs use."""
        return self.scenario(name)

    def state(self) -> Callable[[F], F]:
        """Register a function, plain or async, that returns the environment's state as a small JSON value.

        It is called at the prompt, after each tool call and before the grade; the trajectory keeps what it
        returned, and a scenario reads it as `answer.trajectory.states`. No agent sees it.
        Raises DefinitionError for a second one, and for one that takes arguments.
        """

        def register(function: F) -> F:
            label = getattr(function, "__name__", "state")
            if self._state is not None:
                raise DefinitionError(f"environment {self.name!r} has two functions for @env.state()")
            if call_schema(function).annotations:
                raise DefinitionError(
                    f"@env.state(): {label} takes arguments", "write def state() -> dict: ..."
                )
            self._state = function
            return function

        return register

    def initialize(self, function: F) -> F:
        """Run a function, plain or async and without arguments, once in each episode's process before its
        prompt: `@env.initialize`. What it raises fails the episode as a scenario does. Several run in their
        order. Raises DefinitionError for one that takes arguments."""
        return self._lifecycle.initialize(function)

    def shutdown(self, function: F) -> F:
        """Run a function once in each episode's process after its grade, or where the episode ends before
        that: `@env.shutdown`. All together have 10 s; what they raise is logged. The last one runs first. A
        process that is killed runs none. Otherwise as `initialize`."""
        return self._lifecycle.shutdown(function)

    @property
    def shuts_down(self) -> bool:
        """Whether functions wait for the end of the episode."""
        return self._lifecycle.shuts_down

    def new_states(self) -> StateLog | None:
        """The log of an episode's states; None where no function is declared."""
        return None if self._state is None else StateLog(self._state)

    def bind(self, name: str, protocol: str, url: str, **params: Any) -> None:
        """Offer a server of this environment, at scheme://host:port/path, through `tunnel.open`."""
        self.bindings[name] = Binding(name, protocol, url, params)

    def connect_mcp_config(self, config: Mapping[str, Mapping[str, Any]]) -> None:
        """Attach the tools of MCP servers: `{"sentry": {"command": …, "args": […], "env": {…}}}` or
        `{"docs": {"url": …, "headers": {…}}}`. They are started by `open`. `${secret:NAME}` in a value of env
        or headers stands for a secret that `upcycle set secret` stores. Raises DefinitionError."""
        import mcp  # it takes most of a second: here once, and not in every forked episode

        if not hasattr(mcp, "__path__"):
            raise DefinitionError(f"{mcp.__file__} hides the package mcp", "give the file another name")

        from upcycle.environment.mcp import check_mcp_config

        self.servers.config.update(check_mcp_config(config))

    def serve_mcp(self) -> "Server[Any]":
        """An MCP server with the tools of this environment, in this process: run it, or mount its
        `streamable_http_app()`."""
        from upcycle.environment.mcp import OwnTools, mcp_server

        return mcp_server(self.name, self.version, lambda _request: OwnTools(self))

    @property
    def tools(self) -> dict[str, Tool]:
        """Declared tools and, once `open`ed, those of attached MCP servers."""
        return {**self._tools, **self.servers.tools}

    @property
    def attaches_tools(self) -> bool:
        """Whether `open` adds tools that are not known before."""
        return bool(self.servers.config)

    async def open(self, *, limit_s: float | None = None) -> None:
        """Start attached MCP servers, if any, then run what `@env.initialize` declares. Idempotent. limit_s:
        for the servers. Raises ToolFailed when a server does not answer, SecretMissing where one names a
        secret that is not set, and ScenarioError."""
        await self.servers.attach(frozenset(self._tools), limit_s)
        await self._lifecycle.begin()

    async def close(self) -> None:
        """Run what `@env.shutdown` declares, then stop attached MCP servers. Idempotent."""
        await self._lifecycle.end()
        await self.servers.detach()

    def with_secrets(self, values: Mapping[str, str]) -> "Environment":
        """One with those MCP servers alone that name secrets, for a process of its own that has the
        values."""
        made = Environment(self.name, version=self.version, external_errors=self._external_errors)
        made.servers = self.servers.of_secrets(values, frozenset(self._tools))
        return made

    def scenario_named(self, name: str) -> Scenario:
        """The scenario of that name. Raises UnknownName with the valid names."""
        if name not in self.scenarios:
            known = ", ".join(sorted(self.scenarios)) or "none"
            raise UnknownName(f"environment {self.name!r} has no scenario {name!r}", f"it has {known}")
        return self.scenarios[name]

    async def validate(
        self, tasks: "Iterable[Task]", *, on_task: "OnTask | None" = None, **limits: float
    ) -> "Validation":
        """Play each task's gold answer and its cheapest cheats in this process, and say what pays for them.

        limits: max_cheat, what a cheat may earn, by default 0.05; max_tasks, 200 (of more, so many evenly
        apart); play_s, 60; total_s, 600. on_task is told of each task before it is played. What `upcycle
        check` does.
        """
        from upcycle.checking import CheckLimits, validate

        return await validate(self, tasks, CheckLimits(**limits), on_task)

    def is_external(self, error: BaseException) -> bool:
        """Whether an exception says that something outside failed; of a group, whether each of its does."""
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.is_external, error.exceptions))
        if isinstance(error, self._external_errors):
            return True
        cause = error.__cause__ if isinstance(error, UpcycleError) else None
        return cause is not None and self.is_external(cause)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool as an agent does: refusals and exceptions come back as an error result the agent can
        read, and so does a call that takes longer than the tool's own timeout_s.

        Raises UnknownName for a tool that does not exist, and ToolFailed when the outside world failed.
        """
        try:
            return await self.try_tool(name, arguments)
        except (ArgumentsInvalid, ToolFailed) as error:
            if self.is_external(error):
                raise
            if error.__cause__ is not None:
                log.info("tool %s raised", name, exc_info=error.__cause__)
            return ToolResult(str(error), is_error=True)

    async def try_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """As call_tool, but raises what the tool refuses (ArgumentsInvalid) and raises (ToolFailed)."""
        import asyncio  # here: who declares an environment needs no event loop

        tool = self.tools.get(name)
        if tool is None:
            raise UnknownName(
                f"environment {self.name!r} has no tool {name!r}", f"it has {', '.join(self.tools)}"
            )
        limit_s = tool.spec.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await tool.call(arguments)
        except TimeoutError:
            return ToolResult(no_result_within(name, limit_s), is_error=True)

    def _add_tool(self, tool: Tool) -> None:
        name = tool.spec.name
        if name in self._tools:
            raise DefinitionError(
                f"environment {self.name!r} has two tools called {name!r}", "give one of them another name"
            )
        self._tools[name] = tool


def _refuse_scenario(function: Any) -> None:
    """Raises DefinitionError for what cannot be a tool, in either order of the two decorators."""
    is_scenario = isinstance(function, Scenario)
    if is_scenario or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        label = function.name if is_scenario else function.__name__
        raise DefinitionError(
            f"tool {label!r} is a scenario, or yields as one",
            "a tool is what an agent calls, and returns; a scenario asks and grades: write two functions",
        )


def _paths(data: Any) -> tuple[str, ...]:
    if isinstance(data, list | tuple) and all(isinstance(path, str) and path for path in data):
        return tuple(data)
    raise DefinitionError(f"data is {data!r:.200}", 'give a list of paths: ["cases.json", "fixtures"]')


def _exception_types(types: Any) -> tuple[type[Exception], ...]:
    if isinstance(types, tuple) and all(
        isinstance(one, type) and issubclass(one, Exception) for one in types
    ):
        return tuple(types)
    raise DefinitionError(
        f"external_errors is {types!r}", "give a tuple of exception types: (ConnectionError, psycopg.Error)"
    )
