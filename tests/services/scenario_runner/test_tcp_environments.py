"""Environments that are served elsewhere: ours, and one that knows only the common channel and MCP."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS
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

TIMEOUTS = EpisodeTimeouts(start_s=30, tool_s=30, grade_s=30, tool_result_bytes=64)


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
        process.communicate(timeout=30)


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


HELLO = {"session_id": "s", "env": {"name": "arith"}, "bindings": [], "extensions": ["upcycle/1"]}
TOOLS = {"tools": [{"name": "add", "description": "Adds.", "parameters": {}}]}
WELL = {"hello": HELLO, "tools.list": TOOLS, "tasks.start": {"prompt": "1+2?"}}
MCP = {"name": "mcp", "protocol": "mcp/1", "url": "http://x/mcp"}


class ForeignServer:
    """Speaks the channel from a script: method -> result, whatever its form."""

    def __init__(self, **script: Any) -> None:
        self.script = {**WELL, **{name.replace("_", "."): result for name, result in script.items()}}
        self.connections = 0
        self._idle = asyncio.Event()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        """Every client has hung up, or this does not return."""
        await asyncio.wait_for(self._idle.wait(), 30)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while line := await reader.readline():
                frame = json.loads(line)
                reply = {"jsonrpc": "2.0", "id": frame["id"], "result": self.script[frame["method"]]}
                writer.write(json.dumps(reply).encode() + b"\n")
        except ConnectionError:  # the client aborts its connection
            pass
        finally:
            writer.close()
            self.connections -= 1
            if not self.connections:
                self._idle.set()


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        ({"hello": {}}, EnvironmentLost, "the answer to hello does not follow the protocol: KeyError"),
        ({"hello": [1]}, EnvironmentLost, "a frame does not follow the protocol"),
        ({"hello": {**HELLO, "env": "arith"}}, EnvironmentLost, "the answer to hello"),
        ({"hello": {**HELLO, "extensions": 5}}, EnvironmentLost, "the answer to hello"),
        (
            {"hello": {**HELLO, "extensions": [], "bindings": ["mcp"]}},
            EpisodeFault,
            "a binding does not follow",
        ),
        (
            {"hello": {**HELLO, "extensions": [], "bindings": [{"protocol": "mcp/1"}]}},
            EpisodeFault,
            "a binding does not follow the protocol: KeyError.'name'",
        ),
        (
            {"hello": {**HELLO, "extensions": [], "bindings": [{**MCP, "params": "secret"}]}},
            EpisodeFault,
            "a binding does not follow",
        ),
        ({"tools_list": {"tools": [{"name": "add"}]}}, EpisodeFault, "the answer to tools.list"),
        ({"tools_list": {}}, EpisodeFault, "the answer to tools.list"),
        ({"tasks_start": {}}, EpisodeFault, "the answer to tasks.start"),
        ({"tasks_start": {"prompt": 5}}, EpisodeFault, "the prompt does not follow"),
        ({"tasks_start": {"prompt": ["go"]}}, EpisodeFault, "the prompt does not follow"),
        ({"tasks_start": {"prompt": [{"role": "user"}]}}, EpisodeFault, "the prompt .* KeyError.'content'"),
        ({"tasks_start": {"prompt": [{"role": "user", "content": 5}]}}, EpisodeFault, "type int, not text"),
    ],
)
async def test_what_a_foreign_server_gets_wrong_is_typed_and_leaves_no_connection(
    script: Any, error: type[Exception], text: str
) -> None:
    async with ForeignServer(**script) as url:
        with pytest.raises(error, match=text):
            await TcpHost(TIMEOUTS).start(episode(url))


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"score": "1"},
        {"score": 10**400},
        {"score": 1, "subscores": [{"name": "a", "value": 1, "info": 5}]},
    ],
)
async def test_a_foreign_grade_that_is_none_is_an_invalid_reward(row: Any) -> None:
    async with ForeignServer(tasks_grade=row) as url:
        environment = await TcpHost(TIMEOUTS).start(episode(url))
        with pytest.raises(EpisodeFault) as caught:
            await environment.grade("3", {})
        assert caught.value.failure_kind == "reward_invalid"
        await environment.close()


FOREIGN = {**HELLO, "extensions": []}
PENALTY = {"name": "rude", "value": 0.5, "weight": -0.2, "metadata": None}


@pytest.mark.parametrize(
    ("row", "reward", "success"),
    [
        ({"score": 0.5, "my_note": "x", "reward_model": [1]}, 0.5, False),
        ({"score": 1.5}, 1.5, True),
        ({"score": 1.5, "success": False}, 1.5, False),
        ({"score": -3, "done": True, "isError": False, "info": None, "subscores": None}, -3.0, False),
        ({"score": 0.25, "success": True}, 0.25, True),
        ({"score": 1.0 - 1e-9}, 1.0 - 1e-9, True),
        ({"score": 0.9, "subscores": [PENALTY, {**PENALTY, "children": [PENALTY]}]}, 0.9, False),
    ],
)
async def test_a_grade_of_a_foreign_environment_is_taken_as_it_is_given(
    row: Any, reward: float, success: bool
) -> None:
    async with ForeignServer(hello=FOREIGN, tasks_grade=row) as url:
        environment = await TcpHost(TIMEOUTS).start(episode(url))
        grade = await environment.grade("3", {})
        assert (grade.reward, grade.success) == (reward, success)
        assert [one["weight"] for one in grade.subscores] == [-0.2] * len(row.get("subscores") or ())
        await environment.close()


@pytest.mark.parametrize("extensions", [[], ["upcycle/1"]])
async def test_an_evaluation_that_failed_itself_is_missing_and_no_reward_of_0(extensions: list[str]) -> None:
    row = {"score": 0.0, "isError": True, "content": "judge timed out"}
    async with ForeignServer(hello={**HELLO, "extensions": extensions}, tasks_grade=row) as url:
        environment = await TcpHost(TIMEOUTS).start(episode(url))
        with pytest.raises(EpisodeFault, match=r"evaluation itself failed.*judge timed out") as caught:
            await environment.grade("3", {})
        assert caught.value.failure_kind == "external_failure"
        await environment.close()


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"score": "1"},
        {"score": float("nan")},
        {"score": 10**400},
        {"score": 1, "info": [1]},
        {"score": 1, "subscores": "all"},
        {"score": 1, "subscores": [1]},
        {"score": 1, "subscores": [{"value": 1}]},
        {"score": 1, "subscores": [{"name": "a", "value": 1.5}]},
        {"score": 1, "subscores": [{"name": "a", "value": 1, "weight": float("inf")}]},
    ],
)
async def test_what_no_contract_allows_is_an_invalid_reward_of_a_foreign_environment_too(row: Any) -> None:
    async with ForeignServer(hello=FOREIGN, tasks_grade=row) as url:
        environment = await TcpHost(TIMEOUTS).start(episode(url))
        with pytest.raises(EpisodeFault) as caught:
            await environment.grade("3", {})
        assert caught.value.failure_kind == "reward_invalid"
        await environment.close()


@pytest.mark.parametrize("tasks", [None, {}, [{}], ["sum"], [{"id": "sum", "args": "none"}]])
async def test_a_list_of_tasks_in_another_form_is_a_broken_environment(tasks: Any) -> None:
    async with ForeignServer(tasks_list={"tasks": tasks}) as url:
        if tasks == {}:
            assert (await TcpHost(TIMEOUTS).describe(TcpEnvironment("arith", url))).scenarios == {}
        else:
            with pytest.raises(EnvironmentBroken, match=r"the answer to tasks\.list"):
                await TcpHost(TIMEOUTS).describe(TcpEnvironment("arith", url))


async def test_half_a_character_of_a_prompt_or_tool_reaches_the_policy_as_a_question_mark() -> None:
    prompt = [{"role": "user", "content": [{"text": "a\ud800"}, {"text": "\U0001f600"}]}]
    async with ForeignServer(tasks_start={"prompt": prompt}, tools_call={"content": "b\udfff"}) as url:
        environment = await TcpHost(TIMEOUTS).start(episode(url))
        assert environment.prompt == ({"role": "user", "content": "a?\n\U0001f600", "name": ""},)
        assert (await environment.call_tool("add", {})).content == "b?"
        await environment.close()


async def test_a_served_session_whose_process_was_killed_is_lost(served: str) -> None:
    # Its server runs other sessions and goes on, so the connection stays open.
    environment = await TcpHost(TIMEOUTS).start(episode(served))
    found = re.search(r'"pid": (\d+)', (await environment.call_tool("process", {})).content)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    with pytest.raises(EnvironmentLost, match="was killed by signal 9"):
        await environment.call_tool("add", {"a": 1, "b": 2})
    with pytest.raises(EnvironmentLost, match="was killed by signal 9"):
        await environment.grade("3", {"turns": []})
    await environment.close()


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
