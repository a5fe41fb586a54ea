"""A tool's own limit holds wherever its environment is played: longer than the place's, or shorter."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.libs.upcycle import slow_tools
from tests.support.mcp_results import text_of

from upcycle import Environment
from upcycle.environment.channel import ControlChannel
from upcycle.environment.channel.tunnels import Forwarder
from upcycle.environment.tools import MAX_TOOL_S
from upcycle.errors import DefinitionError
from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.episode import EpisodeOpened, OpenEnvironment, PlayLimits, play_episode
from upcycle.playing.hosting import SameProcessHost
from upcycle.run_config import MAX_EPISODE_DEADLINE_S

ENV = slow_tools.env
FILE = str(Path(slow_tools.__file__))
CALLS = (("build", 1.5), ("peek", 30.0), ("wait", 30.0))
OVER_STDIO = """
import asyncio, runpy, sys
from mcp.server.stdio import stdio_server

async def main():
    server = runpy.run_path(sys.argv[1])["env"].serve_mcp()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

asyncio.run(main())
"""
SAID = ["built", "peek: no result within 0.2 s", "wait: no result within 0.5 s"]


class Builder:
    """Implements ChatPlayer: calls each tool once, then answers."""

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        self.tools = tools
        if messages[-1]["role"] == "tool":
            return ChatReply(AssistantTurn("built"))
        return ChatReply(AssistantTurn("", tuple(ToolCall(name, {"seconds": s}) for name, s in CALLS)))


async def test_in_an_episode_that_is_played_here() -> None:
    host, player = SameProcessHost(ENV), Builder()
    async with host.channel() as channel:
        environment = OpenEnvironment(channel, host.ended_how)
        played = await play_episode(
            slow_tools.tasks[0], environment, player, PlayLimits(tool_s=0.5), EpisodeOpened()
        )
    assert [outcome.content for outcome in played.turns[0].outcomes] == SAID
    assert played.result is not None
    assert played.result.score == 1.0
    assert "timeout_s" not in str(player.tools)  # no model sees it


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Served with a session's limit of half a second."""
    command = [sys.executable, "-m", "upcycle.environment.serve", FILE, "--call-s", "0.5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline().partition('=')[2])}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def test_in_a_session_that_is_served(served: str) -> None:
    channel = await ControlChannel.connect(served)
    try:
        await channel.hello()
        # Not listed before: the session itself knows how long its tools may take.
        assert (await channel.call_tool("build", {"seconds": 1.5})).text == "built"
        assert (await channel.call_tool("peek", {"seconds": 30.0})).text == SAID[1]
        limits = {tool.name: tool.timeout_s for tool in await channel.list_tools()}
        assert limits == {"build": 3600.0, "peek": 0.2, "wait": None}
        built = await channel.call_tool("build", {"seconds": 1.5}, timeout_s=0.5)
        assert built.text == "built"
    finally:
        await channel.close()


async def test_over_mcp(served: str) -> None:
    channel = await ControlChannel.connect(served)
    try:
        welcome = await channel.hello()
        async with (
            Forwarder(served, "mcp") as forwarder,
            Client(forwarder.local(welcome.bindings[0]["url"])) as client,
        ):
            assert text_of(await client.call_tool("build", {"seconds": 1.5})) == "built"
            assert text_of(await client.call_tool("peek", {"seconds": 30.0})) == SAID[1]
    finally:
        await channel.close()


async def test_tools_of_an_attached_server_keep_their_limits() -> None:
    variables = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ours = {"command": sys.executable, "args": ["-c", OVER_STDIO, FILE], "env": variables, "timeout_s": 0.5}
    env = Environment("attached")
    env.connect_mcp_config({"ours": ours})
    await env.open()
    try:
        limits = {name: tool.spec.timeout_s for name, tool in env.tools.items()}
        assert limits == {"build": 3600.0, "peek": 0.2, "wait": 0.5}  # wait: of the server
        results = [await env.call_tool(name, {"seconds": seconds}) for name, seconds in CALLS]
        assert [result.text for result in results] == SAID
    finally:
        await env.close()


@pytest.mark.parametrize("wrong", [0, -1.0, MAX_TOOL_S + 1, "600", True, float("nan")])
def test_a_limit_that_is_none_is_refused_where_it_is_declared(wrong: Any) -> None:
    env = Environment("wrong")
    with pytest.raises(DefinitionError, match=r"tool 'slow': timeout_s is .*; give seconds: above 0"):

        @env.tool(timeout_s=wrong)
        def slow() -> str:
            return ""

    with pytest.raises(DefinitionError, match="of MCP server away"):
        env.connect_mcp_config({"away": {"command": "x", "timeout_s": wrong}})


def test_a_tool_may_take_as_long_as_an_episode() -> None:
    assert MAX_TOOL_S == MAX_EPISODE_DEADLINE_S
