"""The control channel as it is specified: methods, results, error codes, parking, frame limit."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.waiting import until

from upcycle.environment import Environment, load_environment
from upcycle.environment.channel import ChannelClosed, ChannelError, ChannelServer, ControlChannel
from upcycle.environment.channel.client import ChannelTimeout
from upcycle.environment.channel.frames import MAX_FRAME_BYTES

T = TypeVar("T")


@pytest.fixture
def environment(environment_file: Path) -> Environment:
    return load_environment(environment_file)


@pytest.fixture
async def address(environment: Environment) -> AsyncIterator[tuple[str, int]]:
    server = await ChannelServer(environment).listen("127.0.0.1", 0)
    yield server.sockets[0].getsockname()[:2]
    server.close()


@pytest.fixture
async def channel(address: tuple[str, int]) -> AsyncIterator[ControlChannel]:
    async with connected(address) as opened:
        await opened.hello()
        yield opened


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[ControlChannel]:
    opened = await ControlChannel.connect(f"tcp://{address[0]}:{address[1]}")
    try:
        yield opened
    finally:
        await opened.close()


async def raw_exchange(address: tuple[str, int], *lines: bytes) -> list[dict[str, Any]]:
    """Send raw bytes as another implementation would; returns one reply per line."""
    reader, writer = await asyncio.open_connection(*address, limit=64 * 1024 * 1024)
    replies = []
    for line in lines:
        writer.write(line)
        replies.append(json.loads(await asyncio.wait_for(reader.readline(), 30)))
    writer.close()
    return replies


async def refused(channel: ControlChannel, method: str, params: dict[str, Any]) -> ChannelError:
    with pytest.raises(ChannelError) as caught:
        await channel.call(method, params, timeout_s=30)
    return caught.value


async def test_hello_names_environment_and_session(channel: ControlChannel) -> None:
    welcome = channel.welcome
    assert welcome is not None
    assert (welcome.name, welcome.version, welcome.speaks_tools) == ("small-incident", "1.2.3", True)
    assert welcome.session_id.startswith("sess-")
    # The heartbeat: hello with the session's own id keeps the session.
    assert (await channel.hello(welcome.session_id)).session_id == welcome.session_id


async def test_tasks_list_carries_the_json_schema_of_the_arguments(channel: ControlChannel) -> None:
    rows = {row["id"]: row for row in await channel.list_tasks()}
    assert rows["investigate"]["description"] == "Investigate errors."
    assert rows["investigate"]["args"]["required"] == ["query"]
    assert rows["investigate"]["args"]["properties"]["expected"] == {"type": "string", "default": "pool"}


async def test_an_episode_from_prompt_to_reward(channel: ControlChannel) -> None:
    assert await channel.start("investigate", {"query": "500s"}) == "Investigate: 500s"
    tools = {tool.name: tool for tool in await channel.list_tools()}
    assert tools["search_logs"].parameters["properties"]["service"] == {
        "type": "string",
        "description": "which service",
    }
    result = await channel.call_tool("search_logs", {"service": "db", "limit": 1})
    assert (result.text, result.is_error) == ('["db: line 0"]', False)
    grade = await channel.grade("connection pool exhausted")
    assert grade == {"score": 1.0, "success": True, "done": True, "info": {"calls": 1}}


async def test_the_trajectory_reaches_the_scenario(channel: ControlChannel) -> None:
    assert await channel.start("counting", {"start": 3}) == [
        {"role": "system", "content": "count"},
        {"role": "user", "content": "3"},
    ]
    calls = [{"name": "search_logs", "arguments": {}, "result": "", "is_error": False}]
    grade = await channel.grade("done", {"turns": [{"text": "", "tool_calls": calls}]})
    assert grade["score"] == 0.5
    assert grade["success"] is False


async def test_a_tool_that_raises_or_is_misused_is_an_error_result(channel: ControlChannel) -> None:
    await channel.start("investigate", {"query": "x"})
    raised = await channel.call_tool("broken", {})
    assert raised.is_error
    assert raised.text == "broken: RuntimeError: no such index"
    wrong = await channel.call_tool("search_logs", {"service": 3})
    assert wrong.is_error
    assert "expected a string, got 3" in wrong.text
    assert (await channel.grade("pool"))["score"] == 1.0


async def test_unknown_method_is_32601(channel: ControlChannel) -> None:
    assert (await refused(channel, "tasks.rate", {})).code == -32601
    assert (await refused(channel, "tunnel.open", {"capability": "mcp"})).code == -32601


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks.start", {"id": "nothing", "args": {}}),
        ("tasks.start", {"id": 7}),
        ("tasks.start", {"id": "investigate", "args": []}),
        ("tasks.start", {"id": "investigate", "args": {}}),
        ("tasks.start", {"id": "investigate", "args": {"query": "x", "colour": "red"}}),
        ("tasks.grade", {}),
        ("tools.call", {"name": "no_tool", "arguments": {}}),
    ],
)
async def test_bad_params_are_32602(channel: ControlChannel, method: str, params: dict[str, Any]) -> None:
    assert (await refused(channel, method, params)).code == -32602


async def test_wrong_moment_is_32600(channel: ControlChannel, address: tuple[str, int]) -> None:
    assert (await refused(channel, "tasks.grade", {"answer": "x"})).code == -32600
    assert (await refused(channel, "hello", {"session_id": "sess-unknown"})).code == -32600
    async with connected(address) as other:
        assert channel.welcome is not None
        error = await refused(other, "hello", {"session_id": channel.welcome.session_id})
        assert error.code == -32600
        assert "in use" in str(error)
    await channel.start("investigate", {"query": "x"})
    await channel.grade("pool")
    assert (await refused(channel, "tasks.grade", {"answer": "x"})).code == -32600


async def test_what_the_scenario_raises_is_32000_and_the_channel_survives(channel: ControlChannel) -> None:
    error = await refused(channel, "tasks.start", {"id": "raises", "args": {}})
    assert (error.code, error.error_kind) == (-32000, "scenario_error")
    assert "no database" in str(error)
    await channel.start("not_a_number", {})
    error = await refused(channel, "tasks.grade", {"answer": ""})
    assert (error.code, error.error_kind) == (-32000, "reward_invalid")
    assert await channel.start("investigate", {"query": "still here"})


async def test_another_call_during_a_start_is_refused_and_cancel_interrupts_it(
    channel: ControlChannel,
) -> None:
    starting = asyncio.create_task(channel.start("slow", {"seconds": 30}))
    await asyncio.sleep(0.05)
    assert (
        await refused(channel, "tasks.start", {"id": "investigate", "args": {"query": "x"}})
    ).code == -32600
    assert (await refused(channel, "tools.call", {"name": "search_logs", "arguments": {}})).code == -32600
    await channel.hello()  # a heartbeat is answered meanwhile
    await channel.cancel()
    with pytest.raises(ChannelError) as caught:
        await starting
    assert caught.value.code == -32000
    assert await channel.start("investigate", {"query": "next"}) == "Investigate: next"


async def test_a_start_replaces_the_task_held(channel: ControlChannel) -> None:
    await channel.start("investigate", {"query": "one"})
    await channel.start("counting", {"start": 1})
    assert (await channel.grade("x"))["score"] == 0.0


async def test_a_dropped_connection_parks_the_task_for_its_session(address: tuple[str, int]) -> None:
    async with connected(address) as first:
        session_id = (await first.hello()).session_id
        await first.start("investigate", {"query": "x"})
    async with connected(address) as second:
        await _once_accepted(lambda: second.hello(session_id))
        assert (await second.grade("pool"))["score"] == 1.0


async def test_a_plain_grade_resumes_the_only_parked_task(address: tuple[str, int]) -> None:
    async with connected(address) as first:
        await first.start("investigate", {"query": "x"})
    async with connected(address) as second:
        await second.hello()
        graded = await _once_accepted(lambda: second.grade("pool"))
        assert graded["score"] == 1.0
        assert (await refused(second, "tasks.grade", {"answer": "pool"})).code == -32600


async def test_a_hang_up_during_grade_aborts_it(address: tuple[str, int]) -> None:
    async with connected(address) as first:
        session_id = (await first.hello()).session_id
        await first.start("slow_to_grade", {"seconds": 600})
        grading = asyncio.create_task(first.grade("x"))
        await asyncio.sleep(0)  # it is sent
        await first.hello()  # and what was sent before is at work once this is answered
    with pytest.raises(ChannelClosed):
        await grading
    async with connected(address) as second:

        async def is_let_go() -> bool:
            error = await refused(second, "hello", {"session_id": session_id})
            assert error.code == -32600
            return "is unknown" in str(error)  # no longer in use, and not parked

        await until(is_let_go)


async def test_bye_says_goodbye_and_closes(address: tuple[str, int]) -> None:
    async with connected(address) as channel:
        await channel.hello()
        assert await channel.call("bye", {}, timeout_s=30) == {"goodbye": True}
        with pytest.raises(ChannelClosed):
            await channel.list_tasks(timeout_s=30)


async def test_replies_echo_the_id_whatever_it_is(address: tuple[str, int]) -> None:
    replies = await raw_exchange(
        address,
        b'{"jsonrpc":"2.0","id":"abc","method":"hello","params":{}}\n',
        b'{"jsonrpc":"2.0","id":9,"method":"tasks.list"}\n',
        b"this is not json\n",
        b"[1]\n",
    )
    assert [reply["id"] for reply in replies] == ["abc", 9, None, None]
    assert [reply.get("error", {}).get("code") for reply in replies] == [None, None, -32700, -32600]


async def test_an_oversize_frame_is_refused_with_a_null_id_and_ends_the_connection(
    address: tuple[str, int],
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b'{"id":1,"method":"hello","params":{"x":"' + b"a" * (MAX_FRAME_BYTES + 70_000))
    reply = json.loads(await asyncio.wait_for(reader.readline(), 30))
    assert (reply["id"], reply["error"]["code"]) == (None, -32000)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    # Exactly the limit passes.
    async with connected(address) as channel:
        await channel.hello()


async def test_a_result_or_a_call_of_50_mb_is_refused_with_the_name_of_its_tool_and_the_next_goes_on() -> (
    None
):
    large = Environment("large")

    @large.tool()
    def dump(num_bytes: int, note: str = "") -> str:
        return "x" * num_bytes

    server = await ChannelServer(large).listen("127.0.0.1", 0)
    async with connected(server.sockets[0].getsockname()[:2]) as channel:
        await channel.hello()
        with pytest.raises(
            ChannelError, match=r"of the answer to tools\.call 'dump' of at least 500000\d\d bytes"
        ):
            await channel.call_tool("dump", {"num_bytes": 50_000_000})
        with pytest.raises(ChannelError, match=r"of the call tools\.call 'dump' of at least") as refusal:
            await channel.call_tool("dump", {"num_bytes": 1, "note": "x" * MAX_FRAME_BYTES})
        assert refusal.value.error_kind == "frame_too_large"
        assert f"limit {MAX_FRAME_BYTES} bytes; send less" in str(refusal.value)
        assert (await channel.call_tool("dump", {"num_bytes": 3})).text == "xxx"
    server.close()


async def test_a_frame_of_the_limit_passes(address: tuple[str, int]) -> None:
    head, tail = b'{"id":1,"method":"hello","params":{"x":"', b'"}}'
    line = head + b"a" * (MAX_FRAME_BYTES - len(head) - len(tail)) + tail
    assert len(line) == MAX_FRAME_BYTES
    (reply,) = await raw_exchange(address, line + b"\n")
    assert reply["result"]["env"]["name"] == "small-incident"


async def test_a_tunnel_splices_bytes_to_the_capability(
    environment: Environment, address: tuple[str, int]
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    environment.bind("shout", "echo/1", f"tcp://127.0.0.1:{port}")
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b'{"jsonrpc":"2.0","id":1,"method":"tunnel.open","params":{"capability":"shout"}}\n')
    assert json.loads(await reader.readline())["result"] == {"capability": "shout"}
    writer.write(b"hello\n")
    assert await asyncio.wait_for(reader.read(), 30) == b"HELLO\n"
    writer.close()
    server.close()
    request = b'{"jsonrpc":"2.0","id":1,"method":"tunnel.open","params":{"capability":"nope"}}\n'
    (reply,) = await raw_exchange(address, request)
    assert reply["error"]["code"] == -32602


async def test_a_call_without_an_answer_times_out(channel: ControlChannel) -> None:
    with pytest.raises(ChannelTimeout, match=r"within 0\.05 s"):
        await channel.start("slow", {"seconds": 30}, timeout_s=0.05)


async def _once_accepted(call: Callable[[], Awaitable[T]]) -> T:
    """The answer, once the server has parked the session of the connection that was closed."""
    for _ in range(1000):
        try:
            return await call()
        except ChannelError:
            await asyncio.sleep(0.01)
    raise AssertionError("the session was never parked")
