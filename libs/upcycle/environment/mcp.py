"""MCP in both directions: tools of attached servers become the environment's tools, and its own are served.

Imported only by environments that use it: the `mcp` package takes most of a second to load.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from upcycle.environment.mcp_http import http_transport
from upcycle.environment.mcp_program import program_transport, why
from upcycle.environment.server_secrets import NOTHING_HIDDEN, HiddenValues, check_references
from upcycle.environment.tools import ToolResult, ToolSpec, checked_timeout
from upcycle.errors import DefinitionError, InfrastructureError, ToolFailed, UnknownName, UpcycleError
from upcycle.images import Image, checked_images

if TYPE_CHECKING:
    from mcp import Client
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolRequestParams, CallToolResult, Tool

    from upcycle.environment.core import Environment

# Seconds for connecting and for one call. A hanging server becomes a typed error, not a hanging episode.
CONNECT_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 10.0
END_S: Final = 0.5
"""For the end of a server that did not answer: its program is killed."""
STILL_THERE_S: Final = 5.0
"""A server whose connection ended in a call, and that answers within this time, is not gone."""
MAX_TOOLS: Final = 1000
T = TypeVar("T")
_ABANDONED: Final = set["asyncio.Future[Any]"]()
"""Calls whose caller is gone, until they end."""

log = logging.getLogger(__name__)

_STDIO_FIELDS = frozenset({"command", "args", "env", "cwd", "timeout_s"})
_HTTP_FIELDS = frozenset({"url", "headers", "timeout_s"})
_TIMEOUT_META = "upcycle/timeout_s"
"""In `_meta` of a tool that has a limit of its own."""


def check_mcp_config(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The config, or DefinitionError naming the server and the field."""
    if "mcpServers" in config:
        raise DefinitionError(
            "connect_mcp_config got a whole configuration file", "pass what is inside mcpServers"
        )
    for name, server in config.items():
        fields = _HTTP_FIELDS if "url" in server else _STDIO_FIELDS
        if not ("url" in server or "command" in server):
            raise DefinitionError(f"MCP server {name!r} has neither 'command' nor 'url'")
        unknown = sorted(set(server) - fields)
        if unknown:
            raise DefinitionError(
                f"MCP server {name!r}: unknown field {unknown[0]!r}", f"use {', '.join(sorted(fields))}"
            )
        if "timeout_s" in server:
            checked_timeout(server["timeout_s"], f"of MCP server {name}")
        check_references(name, server)
    return dict(config)


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of an attached MCP server, under the name the agent sees."""

    spec: ToolSpec
    remote_name: str
    client: "Client"
    server: str
    hidden: HiddenValues

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises ToolFailed; from InfrastructureError when the server is gone."""
        limit_s = self.spec.timeout_s or CALL_TIMEOUT_S
        call = self.client.call_tool(self.remote_name, dict(arguments), read_timeout_seconds=limit_s)
        try:
            result = await _abandoned_when_cancelled(call)
        except Exception as error:
            said = self.hidden.cut(_said(error))
            text = f"{self.spec.name} of MCP server {self.server!r}: {said}"
            if not _may_be_gone(error) or await self._answers():
                raise ToolFailed(text) from _shown(error, said, self.hidden)
            gone = f"MCP server {self.server!r} is gone: {said}"
            raise ToolFailed(f"{self.spec.name}: {gone}") from InfrastructureError(gone)
        found = _result_of(result, self.spec.name)
        return replace(found, text=self.hidden.cut(found.text))

    async def _answers(self) -> bool:
        """A connection that ended in the middle of one answer may go on with the next."""
        try:
            async with asyncio.timeout(STILL_THERE_S):
                await _abandoned_when_cancelled(self.client.list_tools(cache_mode="bypass"))
        except Exception:
            return False
        return True


async def _abandoned_when_cancelled(call: Coroutine[Any, Any, T]) -> T:
    """Who cancels does not wait until the server, which may answer nothing any more, was told."""
    calling = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(calling)
    except asyncio.CancelledError:
        _ABANDONED.add(calling)
        calling.add_done_callback(_forget)
        calling.cancel()
        raise


def _forget(calling: "asyncio.Task[Any]") -> None:
    _ABANDONED.discard(calling)
    if not calling.cancelled():
        calling.exception()  # seen: no warning about it


def _may_be_gone(error: Exception) -> bool:
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    has_answered = isinstance(error, MCPError) and error.code != CONNECTION_CLOSED
    return not has_answered and not isinstance(error, TimeoutError)


def _said(error: BaseException) -> str:
    from mcp import MCPError
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return f"its answer is none of the protocol: {why(error)}"
    return str(error) if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"


def _shown(error: BaseException, said: str, hidden: HiddenValues) -> BaseException:
    """The cause of a failure; only what was said where its text and traceback may hold a secret."""
    return RuntimeError(said) if hidden else error


def _result_of(result: "CallToolResult", name: str) -> ToolResult:
    """Texts and images as they stand; other kinds of content are left out. Raises ToolFailed."""
    parts: list[str | Image] = []
    for part in result.content:
        if part.type == "text":
            parts.append(part.text)
        elif part.type == "image":
            parts.append(_image_of(part.data, part.mime_type, name))
    images = checked_images(part for part in parts if isinstance(part, Image))
    return ToolResult("\n".join(map(str, parts)), is_error=bool(result.is_error), images=images)


def _image_of(data: str, media_type: str, name: str) -> Image:
    try:
        return Image.from_row({"data": data, "media_type": media_type})
    except ValueError as error:
        raise ToolFailed(f"{name}: its image cannot be read: {error}") from error


class _AttachedServer:
    """One server, entered and left by a task of its own: only the task that entered a client may leave it,
    and a connection that fails ends the task that holds it, which no other server shares."""

    def __init__(self, name: str, server: Mapping[str, Any], hidden: HiddenValues) -> None:
        self.client: Client | None = None
        self.tools: list[Tool] = []
        self._name, self._server, self._hidden = name, server, hidden
        self._why: BaseException | None = None
        self._settled, self._closing = asyncio.Event(), asyncio.Event()
        self._owner = asyncio.create_task(self._hold())
        self._owner.add_done_callback(lambda _: self._settled.set())

    async def attached(self) -> "Client":
        """Wait until its tools are listed. Raises ToolFailed."""
        await self._settled.wait()
        if self.client is None:
            why = self._why or ConnectionError("its connection ended")
            _refuse(self._name, self._server, why, self._hidden)
        return self.client

    async def close(self) -> None:
        """Disconnect; what is not closed within CLOSE_TIMEOUT_S is left."""
        self._closing.set()
        done, _ = await asyncio.wait([self._owner], timeout=CLOSE_TIMEOUT_S)
        if not done:
            self._owner.cancel()

    def abandon(self) -> "asyncio.Task[None]":
        """End it at once; the task that ends with it."""
        self._owner.cancel()
        return self._owner

    async def _hold(self) -> None:
        """A server that goes, or cannot be left, is logged; why one does not come, `attached` raises."""
        from mcp import Client

        try:
            transport = _transport(self._name, self._server)
            async with Client(transport, read_timeout_seconds=CONNECT_TIMEOUT_S) as client:
                self.tools = await _all_tools(client)
                self.client = client
                self._settled.set()
                await self._closing.wait()
        except Exception as error:
            self._why = _first_of(error)
            if self.client is not None:
                what = "mcp_not_closed" if self._closing.is_set() else "mcp_server_gone"
                said = self._hidden.cut(_said(self._why))
                log.warning(what, extra={"server": self._name, "why": said})


class McpTools:
    """The tools of all attached servers; a name that is taken becomes `<server>__<tool>`.

    `close` may be called in any task.
    """

    def __init__(self, hidden: HiddenValues = NOTHING_HIDDEN) -> None:
        self.tools: dict[str, McpTool] = {}
        self._hidden = hidden
        self._servers: dict[str, _AttachedServer] = {}

    @classmethod
    async def connect(
        cls,
        config: Mapping[str, Mapping[str, Any]],
        *,
        taken: frozenset[str],
        limit_s: float | None = None,
        hidden: HiddenValues = NOTHING_HIDDEN,
    ) -> "McpTools":
        """Start or reach every server and list its tools. limit_s: for all of them; CONNECT_TIMEOUT_S holds
        for each. hidden: secrets that the config holds. Raises ToolFailed naming the one that fails, from
        InfrastructureError where it is a server of others that is away."""
        attached = cls(hidden)
        name = ""
        try:
            async with asyncio.timeout(limit_s):
                for name, server in config.items():
                    await attached._attach(name, server, taken)
        except BaseException as error:
            ending = [one.abandon() for one in attached._servers.values()]
            if isinstance(error, Exception):
                await asyncio.wait(ending, timeout=END_S)
            if not isinstance(error, TimeoutError):
                raise
            _refuse(name, config[name], TimeoutError(f"it did not answer within {limit_s:g} s"), hidden)
        return attached

    async def close(self) -> None:
        """Disconnect, and stop the servers that were started as programs. What a server answers to that is
        logged; what is not closed within CLOSE_TIMEOUT_S is left."""
        await asyncio.gather(*(one.close() for one in self._servers.values()))

    async def _attach(self, name: str, server: Mapping[str, Any], taken: frozenset[str]) -> None:
        attaching = self._servers[name] = _AttachedServer(name, server, self._hidden)
        client = await attaching.attached()
        for tool in attaching.tools:
            clash = tool.name in taken or tool.name in self.tools
            label = self._hidden.cut(f"{name}__{tool.name}" if clash else tool.name)
            own = (tool.meta or {}).get(_TIMEOUT_META, server.get("timeout_s"))
            limit_s = None if own is None else checked_timeout(own, label)
            description, schema = self._hidden.cut_from([tool.description or "", tool.input_schema])
            spec = ToolSpec(label, description, schema, limit_s)
            self.tools[label] = McpTool(spec, tool.name, client, name, self._hidden)


def _transport(name: str, server: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    return http_transport(server, CONNECT_TIMEOUT_S) if "url" in server else program_transport(name, server)


async def _all_tools(client: "Client") -> list[Any]:
    """Of all pages of the list."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor is not None and len(tools) < MAX_TOOLS:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _refuse(name: str, server: Mapping[str, Any], cause: BaseException, hidden: HiddenValues) -> NoReturn:
    """Raises ToolFailed of a server that is not attached, from InfrastructureError where a URL names one that
    is away; a program is the environment's own."""
    where = server.get("url") or " ".join(map(str, (server["command"], *server.get("args", ()))))
    reported = hidden.cut(_said(cause))
    said, shown = f"MCP server {name!r} ({where:.200}): {reported}", _shown(cause, reported, hidden)
    if "url" not in server:
        raise ToolFailed(said, "run its command in a shell: is it installed, and does it stay?") from shown
    raise ToolFailed(said, "is it running?") from (InfrastructureError(said) if _is_away(cause) else shown)


def _is_away(error: BaseException) -> bool:
    """Nothing answers, or what answers is out of order."""
    import httpx2
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    if isinstance(error, httpx2.HTTPStatusError):
        return error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, MCPError):
        return error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
    return isinstance(error, httpx2.TransportError | OSError)


def _first_of(error: BaseException) -> BaseException:
    """What went wrong: the client wraps it in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class ToolBackend(Protocol):
    """Where the tools of a request run."""

    async def listed(self) -> list[ToolSpec]:
        """All tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What a tool refuses or raises is a result. Raises UpcycleError."""
        ...


class OwnTools:
    """Implements ToolBackend: the tools of an environment, in this process, as its scenarios' agents call
    them."""

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment

    async def listed(self) -> list[ToolSpec]:
        """Those of attached servers too."""
        await self._environment.open()
        return [tool.spec for tool in self._environment.tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """On the event loop."""
        await self._environment.open()
        return await self._environment.call_tool(name, arguments)


def mcp_server(title: str, version: str, backend: Callable[[Any], ToolBackend]) -> "Server[Any]":
    """An MCP server of tools. backend: by the HTTP request of a call (None where there is none). A tool's
    error reaches the client as an `isError` result."""
    from mcp import MCPError
    from mcp.server.lowlevel import Server
    from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, ListToolsResult

    async def on_list(context: "ServerRequestContext[Any]", _params: Any) -> ListToolsResult:
        try:
            specs = await backend(context.request).listed()
        except UpcycleError as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from error
        return ListToolsResult(tools=[_tool_row(spec) for spec in specs])

    async def on_call(
        context: "ServerRequestContext[Any]", params: "CallToolRequestParams"
    ) -> "CallToolResult":
        try:
            result = await backend(context.request).call(params.name, params.arguments or {})
        except UnknownName as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except UpcycleError as error:
            result = ToolResult(str(error), is_error=True)
        return _result_row(result)

    return Server(title, version=version, on_list_tools=on_list, on_call_tool=on_call)


def _tool_row(spec: ToolSpec) -> "Tool":
    from mcp.types import Tool

    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema=dict(spec.parameters),
        meta=None if spec.timeout_s is None else {_TIMEOUT_META: spec.timeout_s},
    )


def _result_row(result: ToolResult) -> "CallToolResult":
    from mcp.types import CallToolResult, ImageContent, TextContent

    rows = [image.to_row() for image in result.images]
    shown = [ImageContent(data=row["data"], mime_type=row["media_type"]) for row in rows]
    return CallToolResult(content=[TextContent(text=result.text), *shown], is_error=result.is_error)
