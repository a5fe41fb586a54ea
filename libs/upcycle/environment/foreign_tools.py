"""The tools of an environment of others: MCP servers among its bindings, reached through its own tunnel."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from upcycle.environment.channel.frames import understood
from upcycle.environment.channel.tunnels import Forwarder
from upcycle.environment.tools import Tool, ToolResult, bounded_text
from upcycle.errors import ToolFailed

_MCP: Final = "mcp/"


async def attached_tools(
    url: str, bindings: tuple[Mapping[str, Any], ...], stack: AsyncExitStack
) -> Mapping[str, Tool]:
    """By name; they are there until the stack is closed. url: of the environment. Raises ToolFailed for a
    server that does not answer, ChannelError for a binding that is none."""
    config: dict[str, dict[str, Any]] = {}
    with understood("a binding"):
        offered = [one for one in bindings if str(one.get("protocol", "")).startswith(_MCP)]
        for binding in offered:
            forwarder = await stack.enter_async_context(Forwarder(url, binding["name"]))
            token = (binding.get("params") or {}).get("auth_token")
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            config[binding["name"]] = {"url": forwarder.local(binding["url"]), "headers": headers}
    if not config:
        return {}
    from upcycle.environment.mcp import McpTools

    attached = await McpTools.connect(config, taken=frozenset())
    stack.push_async_callback(attached.close)
    return attached.tools


async def call_attached(
    tools: Mapping[str, Tool], max_bytes: int, name: str, arguments: Mapping[str, Any]
) -> ToolResult:
    """What a tool refuses or raises is a result, and so is a name that none has."""
    tool = tools.get(name)
    if tool is None:
        return ToolResult(f"no tool {name!r}; there is {', '.join(tools) or 'none'}", is_error=True)
    try:
        result = await tool.call(arguments)
    except ToolFailed as error:
        return ToolResult(str(error), is_error=True)
    text, cut = bounded_text(result.text, max_bytes)
    return ToolResult(text, result.is_error, cut, images=result.images)
