"""A served environment as a program: each session has a process of its own, on the channel and over MCP."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from mcp import Client
from tests.support.mcp_results import text_of
from tests.support.waiting import until

from upcycle.environment.channel import ChannelError, ControlChannel
from upcycle.environment.channel.tunnels import Forwarder

LEDGER = """
import asyncio
import os
import sqlite3
from upcycle import Environment

env = Environment("ledger")
entries = []
book = sqlite3.connect(":memory:")


@env.tool()
def add(amount: int) -> list[int]:
    entries.append(amount)
    return entries


@env.tool()
def total() -> int:
    return book.execute("select sum(value) from json_each(?)", [str(entries)]).fetchone()[0] or 0


@env.tool()
def process() -> int:
    return os.getpid()


@env.tool()
def give_up(code: int) -> str:
    os._exit(code)


@env.scenario()
async def sums(start: int):
    entries.append(start)
    answer = yield f"Add to {start}."
    yield 1.0 if answer == str(sum(entries)) else 0.0


@env.scenario()
async def hangs():
    yield "wait"
    await asyncio.sleep(3600)
    yield 1.0
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.py"
    path.write_text(LEDGER)
    return path


@contextmanager
def served(path: Path, *flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "upcycle.environment.serve", str(path), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"tcp://127.0.0.1:{int(process.stdout.readline().partition('=')[2])}", process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@asynccontextmanager
async def session(url: str, session_id: str | None = None) -> AsyncIterator[ControlChannel]:
    channel = await ControlChannel.connect(url)
    try:
        await channel.hello(session_id)
        yield channel
    finally:
        await channel.close()


@asynccontextmanager
async def tools_of(url: str, channel: ControlChannel) -> AsyncIterator[Client]:
    """As a client does that knows only MCP: through the tunnel, by the URL that hello names."""
    assert channel.welcome is not None
    (binding,) = channel.welcome.bindings
    assert (binding["name"], binding["protocol"]) == ("mcp", "mcp/2025-11-25")
    async with Forwarder(url, "mcp") as forwarder, Client(forwarder.local(binding["url"])) as client:
        yield client


async def pid_of(channel: ControlChannel) -> int:
    return int((await channel.call_tool("process", {})).text)


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_two_sessions_do_not_see_each_others_state(ledger: Path) -> None:
    with served(ledger) as (url, _):
        async with session(url) as first, session(url) as second:
            await first.start("sums", {"start": 1})
            await second.start("sums", {"start": 100})
            assert (await first.call_tool("add", {"amount": 2})).text == "[1, 2]"
            assert (await second.call_tool("add", {"amount": 2})).text == "[100, 2]"
            assert (await first.grade("3"))["score"] == 1.0
            assert (await second.grade("102"))["score"] == 1.0


async def test_mcp_calls_the_tools_of_its_own_session_as_the_channel_does(ledger: Path) -> None:
    with served(ledger) as (url, _):
        async with session(url) as first, session(url) as second:
            await first.start("sums", {"start": 1})
            await second.start("sums", {"start": 100})
            async with tools_of(url, first) as one, tools_of(url, second) as other:
                assert {tool.name for tool in (await one.list_tools()).tools} >= {"add", "total"}
                assert text_of(await one.call_tool("total", {})) == "1"
                assert text_of(await other.call_tool("total", {})) == "100"
                for arguments in ({"amount": "x"}, {}):
                    said = await one.call_tool("add", arguments)
                    over_channel = await first.call_tool("add", arguments)
                    assert (said.is_error, text_of(said)) == (True, over_channel.text)
            assert (await first.grade("1"))["score"] == 1.0


async def test_a_killed_session_process_takes_neither_the_server_nor_another_session_down(
    ledger: Path,
) -> None:
    with served(ledger) as (url, server):
        async with session(url) as first, session(url) as second:
            await first.start("sums", {"start": 1})
            await second.start("sums", {"start": 2})
            os.kill(await pid_of(first), signal.SIGKILL)
            with pytest.raises(ChannelError, match=r"was killed by signal 9 \(SIGKILL\)") as caught:
                await first.grade("1")
            assert caught.value.error_kind == "environment_lost"
            with pytest.raises(ChannelError, match=r"tasks\.start begins a new one"):
                await first.call_tool("total", {})
            assert (await second.grade("2"))["score"] == 1.0
            await first.start("sums", {"start": 7})
            assert (await first.grade("7"))["score"] == 1.0
            with pytest.raises(ChannelError, match="ended with exit status 3"):
                await first.call_tool("give_up", {"code": 3})
        assert server.poll() is None


async def test_a_session_process_ends_with_its_connection_and_a_parked_one_with_its_limit(
    ledger: Path,
) -> None:
    with served(ledger, "--parked-s", "1") as (url, _):
        async with session(url) as idle:
            pid = await pid_of(idle)
        await until(lambda: not is_alive(pid))
        async with session(url) as started:
            await started.start("sums", {"start": 1})
            parked, welcome = await pid_of(started), started.welcome
        assert welcome is not None
        await until(lambda: not is_alive(parked))
        with pytest.raises(ChannelError, match="one with a task 1 s after it"):
            async with session(url, welcome.session_id):
                pass


async def test_a_parked_task_is_resumed_in_its_process(ledger: Path) -> None:
    with served(ledger) as (url, _):
        async with session(url) as channel:
            await channel.start("sums", {"start": 5})
            await channel.call_tool("add", {"amount": 5})
            welcome = channel.welcome
        assert welcome is not None
        again = await resumed(url, welcome.session_id)
        assert (await again.grade("10"))["score"] == 1.0
        await again.close()


async def resumed(url: str, session_id: str) -> ControlChannel:
    """Once the server has seen that the other connection was closed."""
    for _ in range(1000):
        channel = await ControlChannel.connect(url)
        try:
            await channel.hello(session_id)
            return channel
        except ChannelError:
            await channel.close()
            await asyncio.sleep(0.03)
    raise AssertionError("the session was never parked")


async def test_limits_are_named(ledger: Path) -> None:
    with served(ledger, "--max-sessions", "1", "--call-s", "2") as (url, _):
        async with session(url) as first, session(url) as second:
            assert [row["id"] for row in await second.list_tasks()] == ["sums", "hangs"]
            await first.start("hangs", {})
            with pytest.raises(ChannelError, match=r"1 session processes run, limit 1: .*--max-sessions"):
                await second.start("sums", {"start": 1})
            with pytest.raises(ChannelError, match=r"tasks\.grade took longer than its limit of 2 s"):
                await first.grade("")
            await second.start("sums", {"start": 1})


async def test_a_cancelled_start_leaves_the_session_usable(ledger: Path) -> None:
    with served(ledger) as (url, _):
        async with session(url) as channel:
            await channel.start("hangs", {})
            grading = asyncio.create_task(channel.grade(""))
            await asyncio.sleep(0)
            with pytest.raises(ChannelError, match="a start or grade is running"):
                await channel.start("sums", {"start": 1})
            await channel.cancel()
            with pytest.raises(ChannelError, match="cancelled"):
                await grading
            await channel.start("sums", {"start": 1})
            assert (await channel.grade("1"))["score"] == 1.0


async def test_nothing_is_left_of_a_server_that_was_stopped(ledger: Path) -> None:
    with served(ledger) as (url, server):
        async with session(url) as channel:
            await channel.start("sums", {"start": 1})
            pid = await pid_of(channel)
            server.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(server.wait, 60) == 0
    assert not is_alive(pid)


async def test_a_server_whose_forking_process_ended_says_so_and_ends(ledger: Path) -> None:
    with served(ledger) as (url, server):
        async with session(url) as channel:
            pid = await pid_of(channel)
            forker = parent_of(pid)
            os.kill(forker, signal.SIGKILL)
            assert await asyncio.to_thread(server.wait, 60) != 0
        await until(lambda: not is_alive(pid))


def test_what_a_session_prints_is_not_in_the_servers_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text(LEDGER.replace("    return os.getpid()", "    print('loud')\n    return 1"))

    async def once(url: str) -> None:
        async with session(url) as channel:
            await channel.call_tool("process", {})

    with served(path) as (url, server):
        asyncio.run(once(url))
        server.send_signal(signal.SIGTERM)
        assert server.stdout is not None
        assert json.dumps(server.stdout.read()) == '""'


@pytest.mark.parametrize("port", ["taken", "70000"])
def test_a_port_that_cannot_be_had_is_one_line(tmp_path: Path, port: str) -> None:
    (tmp_path / "env.py").write_text('from upcycle import Environment\n\nenv = Environment("e")\n')
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1]) if port == "taken" else port
        command = [
            sys.executable,
            "-m",
            "upcycle.environment.serve",
            str(tmp_path / "env.py"),
            "--port",
            port,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert done.stderr.endswith("; give another --port\n")
