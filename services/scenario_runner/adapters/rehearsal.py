"""A rehearsal: the zygote plays a scenario of ours before it forks the first episode.

Python adapts its code while it runs, which writes to it, and a forked process copies each page that it writes
to. What was adapted here is shared by all episodes; each saves a fifth of what serving it costs.
"""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any, Final

from upcycle.environment import Environment
from upcycle.environment.channel.server import ChannelServer

_ROUNDS: Final = 16
"""The interpreter adapts a function at its eighth call or later."""
_ANSWER_BYTES: Final = 64 * 1024
_CALLS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("hello", {}),
    ("tasks.start", {"id": "rehearse", "args": {"number": 1}}),
    ("tools.call", {"name": "repeat", "arguments": {"text": "1"}, "timeout_s": 5.0, "max_bytes": 100}),
    ("tasks.grade", {"answer": "1", "trajectory": {"turns": []}}),
)


class RehearsalFailed(Exception):
    """The channel did not answer a scenario of ours: no episode would be answered either."""


def rehearse() -> None:
    """Play the scenario a few times over the control channel. Leaves nothing open. Raises RehearsalFailed."""
    environment = _environment()
    for _ in range(_ROUNDS):
        asyncio.run(_play(environment))


def _environment() -> Environment:
    environment = Environment("rehearsal")

    @environment.scenario("rehearse")
    async def rehearse_one(number: int) -> AsyncGenerator[Any, Any]:
        """Answer with the number."""
        answer = yield f"say {number}"
        yield 1.0 if answer == str(number) else 0.0

    @environment.tool()
    async def repeat(text: str) -> str:
        """Say it again."""
        return text

    return environment


async def _play(environment: Environment) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        serving = asyncio.ensure_future(ChannelServer(environment).serve_socket(theirs))
        for number, (method, params) in enumerate(_CALLS):
            await _call(ours, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    await serving


async def _call(sock: socket.socket, frame: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, json.dumps(frame).encode() + b"\n")
    async with asyncio.timeout(5.0):
        reply = await loop.sock_recv(sock, _ANSWER_BYTES)
    if "result" not in json.loads(reply or b"{}"):
        raise RehearsalFailed(f"{frame['method']} was answered with {reply[:500]!r}")
