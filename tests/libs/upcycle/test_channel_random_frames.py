"""Random frames at both ends of the control channel: an error frame or an end, and nothing stays behind."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from tests.libs.upcycle.test_control_channel import connected
from tests.support.fuzzing import CASES, randomness
from tests.support.waiting import until

from upcycle.environment import load_environment
from upcycle.environment.channel.client import ControlChannel
from upcycle.environment.channel.server import ChannelServer
from upcycle.errors import UpcycleError

METHODS: Final = (
    *("hello", "tasks.list", "tasks.start", "tasks.grade", "tasks.cancel", "tools.list", "tools.call"),
    *("bye", "heartbeat", "", "\x00", "__init__", 7, None),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 2**70, 1e308, float("nan"), "", "x" * 3000, "\x1b[2J", [], {}, [[]], {"": {}}),
    *({"id": "t1"}, {"name": "t1", "arguments": []}, {"seconds": -1}),
)
NAMES: Final = (
    "id",
    "name",
    "task",
    "args",
    "arguments",
    "session_id",
    "answer",
    "seconds",
    "result",
    "error",
    "\x00",
)


def line_of(dice: random.Random) -> bytes:
    """Mostly a frame."""
    if dice.random() < 0.2:
        return dice.randbytes(dice.choice((1, 30, 3000))) + b"\n"
    frame = {"jsonrpc": dice.choice(("2.0", 2)), "id": dice.choice((1, "a", *VALUES))}
    kind = dice.choice(("method", "method", "result", "error"))
    frame[kind] = dice.choice(METHODS) if kind == "method" else dice.choice(VALUES)
    params = {name: dice.choice(VALUES) for name in dice.sample(NAMES, dice.randint(0, 5))}
    frame["params"] = dice.choice((params, params, *VALUES))
    line = json.dumps(frame).encode()
    return (line[: dice.randint(0, len(line))] if dice.random() < 0.1 else line) + b"\n"


@pytest.fixture
def unhandled() -> Iterator[list[Any]]:
    """What reaches the loop as an error that no one took."""
    found: list[Any] = []
    yield found
    assert not found


@pytest.fixture
async def address(environment_file: Path, unhandled: list[Any]) -> AsyncIterator[tuple[str, int]]:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    server = await ChannelServer(load_environment(environment_file)).listen("127.0.0.1", 0)
    yield server.sockets[0].getsockname()[:2]
    server.close()


async def test_an_environment_goes_on_after_random_frames(address: tuple[str, int]) -> None:
    dice, before = randomness("frames to an environment"), len(asyncio.all_tasks())
    for _ in range(5 * CASES):
        reader, writer = await asyncio.open_connection(*address)
        with suppress(ConnectionError):
            writer.write(b"".join(line_of(dice) for _ in range(20)))
            writer.write_eof()
            async for line in reader:
                assert isinstance(json.loads(line), dict)
        writer.close()
    async with connected(address) as channel:
        assert await channel.hello()
    await until(lambda: len(asyncio.all_tasks()) <= before + 1, "the tasks of the connections to end")


async def test_a_client_fails_by_type_whatever_an_environment_writes(unhandled: list[Any]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    dice = randomness("frames of an environment")
    for _ in range(5 * CASES):
        ours, theirs = socket.socketpair()
        channel = await ControlChannel.over(ours, speaks_tools=True)
        theirs.sendall(b"".join(line_of(dice) for _ in range(5)))
        with suppress(UpcycleError, TimeoutError):
            await channel.call("hello", {}, timeout_s=0.05)
        await channel.close()
        theirs.close()
