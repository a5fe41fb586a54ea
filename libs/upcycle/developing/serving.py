"""Serve an environment over MCP and load it again when a file of it changes."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import datetime

from upcycle.developing.dev_tools import DevTools, described
from upcycle.developing.versions import DevSource, Version
from upcycle.developing.watching import Watcher
from upcycle.environment.mcp_endpoint import McpEndpoint
from upcycle.errors import UpcycleError

Say = Callable[[str], None]


async def develop(source: DevSource, watcher: Watcher, port: int, say: Say, stop: asyncio.Event) -> None:
    """Until `stop` is set. Raises PortTaken."""
    tools = DevTools()
    async with AsyncExitStack() as stack:
        endpoint = McpEndpoint(source.path.stem, "dev", "/mcp", lambda _request: tools, port=port)
        url = f"{await stack.enter_async_context(endpoint)}/mcp"
        stack.push_async_callback(tools.close)
        _introduce(source, url, say)
        await _load(source, watcher, tools, say, "")
        while changed := await watcher.next_change(stop):
            await _load(source, watcher, tools, say, f"{', '.join(changed[:3])} changed: ")


def _introduce(source: DevSource, url: str, say: Say) -> None:
    name = source.path.stem
    say(f"{source.path} over MCP (streamable HTTP, this machine only): {url}")
    say(f'in a client\'s configuration: {{"mcpServers": {{"{name}": {{"type": "http", "url": "{url}"}}}}}}')
    say("its tools, and dev_start and dev_grade to play a scenario. Ctrl-C ends it.")


async def _load(source: DevSource, watcher: Watcher, tools: DevTools, say: Say, why: str) -> None:
    watcher.read_again()
    at = f"{datetime.now().astimezone():%H:%M:%S} {why}"
    try:
        version = await Version.load(source, say)
    except UpcycleError as error:
        kept = tools.served
        tools.why_none = f"{source.path} does not load"
        served = f"version {kept} is still served" if kept else "nothing is served yet"
        between = "\n" if "\n" in str(error) else " "
        say(f"{at}not loaded; {served}:{between}{error}")
        return
    await tools.use(version)
    found = await described(version)
    tools.taken = found.taken
    say(f"{at}version {version.digest}, {found.text}")
    for line in found.lacks:
        say(line)
    say(f"an agent plays it with --runtime {version.url}")
