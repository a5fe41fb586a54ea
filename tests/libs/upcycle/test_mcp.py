"""MCP in both directions, with real servers: a program on stdio, streamable HTTP, our own tools served."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from tests.support.mcp_results import text_of

from upcycle import Environment, Task, Taskset
from upcycle.environment import load_environment
from upcycle.errors import DefinitionError, ToolFailed
from upcycle.playing.in_process import play_tasks

WEATHER = str(Path(__file__).with_name("mcp_weather.py"))
STDIO = {"command": sys.executable, "args": [WEATHER]}


@asynccontextmanager
async def opened(env: Environment) -> AsyncIterator[Environment]:
    # Each in a task of its own, as the calls of the control channel are.
    await asyncio.create_task(env.open())
    try:
        yield env
    finally:
        await asyncio.create_task(env.close())


@pytest.fixture
def weather_url() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, WEATHER, "http"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def use_weather(env: Environment) -> None:
    spec = env.tools["forecast"].spec
    assert spec.description == "Tomorrow's weather."
    assert spec.parameters["properties"]["city"]["type"] == "string"
    assert (await env.call_tool("forecast", {"city": "Kiel"})).text == "rain in Kiel"
    failed = await env.call_tool("broken", {})
    assert failed.is_error
    assert "broken" in failed.text


async def test_a_program_on_stdio_lends_its_tools() -> None:
    env = Environment("attached")
    env.connect_mcp_config({"weather": STDIO})
    assert env.attaches_tools
    assert not env.tools  # nothing is started by declaring
    async with opened(env):
        await use_weather(env)


async def test_a_server_on_streamable_http_lends_its_tools(weather_url: str) -> None:
    env = Environment("attached")
    env.connect_mcp_config({"weather": {"url": weather_url, "headers": {"x-test": "1"}}})
    async with opened(env):
        await use_weather(env)


async def test_a_name_that_is_taken_is_prefixed() -> None:
    env = Environment("attached")

    @env.tool()
    def forecast(city: str) -> str:
        return f"our own word on {city}"

    env.connect_mcp_config({"weather": STDIO})
    async with opened(env):
        assert (await env.call_tool("forecast", {"city": "x"})).text == "our own word on x"
        assert (await env.call_tool("weather__forecast", {"city": "x"})).text == "rain in x"


async def test_a_server_that_is_not_there_is_named() -> None:
    env = Environment("attached")
    env.connect_mcp_config({"away": {"url": "http://127.0.0.1:9/mcp"}})
    with pytest.raises(ToolFailed, match="MCP server 'away'"):
        await env.open()


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ({}, "neither 'command' nor 'url'"),
        ({"command": "x", "urls": "y"}, "unknown field 'urls'"),
        ({"url": "x", "env": {}}, "unknown field 'env'"),
    ],
)
def test_a_malformed_config_is_refused(server: dict[str, object], text: str) -> None:
    with pytest.raises(DefinitionError, match=text):
        Environment("e").connect_mcp_config({"one": server})


async def test_our_tools_as_an_mcp_server(environment_file: Path) -> None:
    env = load_environment(environment_file)
    async with Client(env.serve_mcp()) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["search_logs"].description == "Find log lines."
        result = await client.call_tool("search_logs", {"service": "db", "limit": 1})
        assert not result.is_error
        assert "db: line 0" in str(result.content)
        broken = await client.call_tool("broken", {})
        assert (broken.is_error, text_of(broken)) == (True, "broken: RuntimeError: no such index")
        wrong = await client.call_tool("search_logs", {"service": 3})
        assert (wrong.is_error, "expected a string, got 3" in text_of(wrong)) == (True, True)
        with pytest.raises(MCPError, match="has no tool 'nothing'"):
            await client.call_tool("nothing", {})


async def test_a_sync_tool_called_over_mcp_shares_the_scenarios_thread() -> None:
    env = Environment("books")
    shelf = sqlite3.connect(":memory:")

    @env.tool()
    def count() -> int:
        return int(shelf.execute("select 1").fetchone()[0])

    async with Client(env.serve_mcp()) as client:
        result = await client.call_tool("count", {})
    assert (result.is_error, text_of(result)) == (False, "1")


async def test_tools_of_attached_servers_are_served_on() -> None:
    env = Environment("attached")
    env.connect_mcp_config({"weather": STDIO})
    async with opened(env), Client(env.serve_mcp()) as client:
        assert "forecast" in {tool.name for tool in (await client.list_tools()).tools}
        assert text_of(await client.call_tool("forecast", {"city": "Kiel"})) == "rain in Kiel"


ATTACHED = """
import sys
from upcycle import Environment
env = Environment("attached")
env.connect_mcp_config({"weather": {"command": sys.executable, "args": [WEATHER, "lingers"]}})
@env.scenario("ask")
def ask():
    answer = yield "What is the weather in Kiel?"
    yield float(answer == "rain in Kiel")
tasks = [ask.task(slug="kiel")]
"""


def test_a_server_that_ends_slowly_is_started_again_for_the_next_episodes(tmp_path: Path) -> None:
    (tmp_path / "attached_tasks.py").write_text(ATTACHED.replace("WEATHER", repr(WEATHER)))
    taskset = Taskset.load(tmp_path / "attached_tasks.py")

    def reply(task: Task, messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        return {"tool_calls": [{"name": "forecast", "arguments": {"city": "Kiel"}}]}

    for _ in range(2):
        (episode,) = play_tasks(taskset, reply)
        assert episode.result is not None, episode.failure
        assert episode.result.score == 1.0
