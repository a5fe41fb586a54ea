"""Everything that an MCP server with a secret says goes into the prompt, the state, the log and the grade."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from upcycle import Environment

env = Environment("echoing", data=["mcp_keyed.py"])
PROGRAM = str(Path(__file__).with_name("mcp_keyed.py"))
env.connect_mcp_config(
    {"keyed": {"command": sys.executable, "args": [PROGRAM], "env": {"KEYED_TOKEN": "${secret:TOKEN}"}}}
)


@env.state()
async def state() -> str:
    return (await env.call_tool("tell", {})).text


@env.scenario("echo")
async def echo(number: int) -> AsyncGenerator[Any, Any]:
    said = (await env.call_tool("tell", {})).text
    refused = (await env.call_tool("refuse", {})).text
    print(said, refused)
    yield f"{number}. The server said: {said} {refused}"
    yield {"score": 1.0, "info": {"said": said, "refused": refused}}


tasks = [echo(number=number) for number in range(2)]
