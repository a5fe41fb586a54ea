"""The shell's environment with an MCP server that has a secret, and whose scenarios repeat what it says."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from shell import env as shell  # type: ignore[import-not-found] # a file beside this one

from upcycle import Environment

env = Environment("keyed", data=["mcp_keyed.py"])
PROGRAM = str(Path(__file__).with_name("mcp_keyed.py"))
env.connect_mcp_config(
    {"keyed": {"command": sys.executable, "args": [PROGRAM], "env": {"KEYED_TOKEN": "${secret:TOKEN}"}}}
)
for tool in shell.tools.values():
    env._add_tool(tool)


@env.state()
async def state() -> str:
    return (await env.call_tool("tell", {})).text


@env.scenario("repeat")
async def repeat(breaks: bool = False, known: str = "") -> AsyncGenerator[Any, Any]:
    said = (await env.call_tool("tell", {})).text
    refused = (await env.call_tool("refuse", {})).text
    print(said, refused)
    yield f"The server said: {said} {refused} {known}"
    if breaks:
        raise ValueError(f"{said} {refused}")
    yield {"score": 1.0, "info": {"said": said}}
