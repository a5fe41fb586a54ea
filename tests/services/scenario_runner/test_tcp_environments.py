"""Environments that are served elsewhere: ours, and one that knows only the common channel and MCP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import ENVIRONMENTS, Runner
from tests.services.scenario_runner.support import arith, finished, play_to_grade, register, run_spec, submit
from tests.services.scenario_runner.support import sampling as sampler

from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeFault,
    EpisodeTimeouts,
    EpisodeToPlay,
    TcpEnvironment,
)
from upcycle.environment.channel import client as channel_client

TIMEOUTS = EpisodeTimeouts(start_s=5, tool_s=5, grade_s=5, tool_result_bytes=64)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """`python -m upcycle.environment.serve arith.py`, tools also as an MCP server behind the tunnel."""
    command = [sys.executable, "-m", "upcycle.environment.serve", str(ENVIRONMENTS / "arith.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline().partition('=')[2])}"
    finally:
        process.terminate()
        process.communicate(timeout=10)


def episode(url: str, scenario: str = "sum", args: Any = None) -> EpisodeToPlay:
    arguments = json.dumps({"a": 1, "b": 2} if args is None else args)
    return EpisodeToPlay("e", TcpEnvironment("arith", url), scenario, arguments, datetime.now(UTC))


@pytest.mark.parametrize("extension", ["upcycle/1", "not/ours"])
async def test_an_episode_over_tcp_that_each_call_meets_in_another_task(
    served: str, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With an extension it does not announce, the environment is one that has tools only behind its MCP
    # binding.
    monkeypatch.setattr(channel_client, "EXTENSION", extension)
    host = TcpHost(TIMEOUTS)
    description = await host.describe(TcpEnvironment("arith", served))
    assert description.name == "arith"
    assert description.scenarios["sum"]["required"] == ["a", "b"]
    environment = await asyncio.create_task(host.start(episode(served)))
    assert [message["content"] for message in environment.prompt] == ["You add.", "1+2?"]
    assert {tool.name for tool in environment.tools} == {"add", "process"}
    outcome = await environment.call_tool("add", {"a": 1, "b": 2})
    assert (json.loads(outcome.content), outcome.is_error) == ({"sum": 3}, False)
    assert (await environment.call_tool("process", {})).truncated
    assert (await environment.call_tool("nothing", {})).is_error
    assert (await environment.call_tool("add", {"a": "x"})).is_error
    grade = await environment.grade("3", {"turns": []})
    assert (grade.reward, grade.success) == (1.0, True)
    await asyncio.create_task(environment.close())
    await environment.close()


async def test_what_a_served_environment_refuses_is_typed(served: str) -> None:
    host = TcpHost(TIMEOUTS)
    with pytest.raises(EpisodeFault, match="no scenario 'divide'"):
        await host.start(episode(served, scenario="divide"))
    with pytest.raises(EpisodeFault, match="missing argument 'b'"):
        await host.start(episode(served, args={"a": 1}))
    with pytest.raises(EnvironmentLost, match="no environment answers"):
        await host.start(episode("tcp://127.0.0.1:9"))
    with pytest.raises(EnvironmentBroken, match="no environment answers"):
        await host.describe(TcpEnvironment("arith", "tcp://127.0.0.1:9"))


async def test_an_environment_that_hangs_up_is_lost() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = json.loads(await reader.readline())
        env = {"name": "arith", "version": "1"}
        result = {"session_id": "sess-1", "env": env, "bindings": []}
        writer.write(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": result}).encode() + b"\n")
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(EnvironmentLost, match="hung up"):
        await TcpHost(TIMEOUTS).start(episode(url))
    server.close()


@pytest.mark.parametrize("extension", ["upcycle/1", "not/ours"])
async def test_a_run_over_a_served_environment(
    runner: Runner, served: str, extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_client, "EXTENSION", extension)
    taskset = arith()
    taskset.environment.tcp.url = served
    await register(runner, taskset)
    run = await submit(runner, run_spec(group_size=2))
    async with sampler(runner, lambda request: play_to_grade(runner, request)):
        done = await finished(runner, run.run_id)
    assert dict(done.run.counts.by_state) == {"evaluated": 6}
    assert sorted(row.reward for row in done.results) == [0.25] * 3 + [1.0] * 3
