"""What a hostile environment writes to its control channel costs the runner neither memory nor time."""

import asyncio
import os
import resource
import socket
import time

import pytest

from upcycle.environment.channel.client import MAX_UNASKED, ControlChannel
from upcycle.environment.channel.frames import ChannelClosed

WRITES_S = 1.0


def flooding(begin: bytes) -> tuple[socket.socket, int]:
    """A process that writes this, and then empty frames as fast as they are taken."""
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return ours, pid
    ours.close()
    ends_at = time.monotonic() + WRITES_S
    try:
        theirs.sendall(begin)
        while time.monotonic() < ends_at:
            theirs.sendall(b"{}\n" * 20_000)
    finally:
        os._exit(0)


@pytest.mark.parametrize("begin", [b"{}\n", b"[]\n"], ids=["replies without a request", "no frame"])
async def test_a_flood_ends_the_channel(begin: bytes) -> None:
    """After a frame that is none nothing read the lines any more, and they were kept: 120 MB a second."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sock, pid = flooding(begin)
    channel, began = await ControlChannel.over(sock, speaks_tools=True), time.monotonic()
    while time.monotonic() < began + WRITES_S:
        await asyncio.sleep(0.01)
    assert channel.is_closed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB
    with pytest.raises(ChannelClosed):
        await channel.call("hello", {}, timeout_s=1.0)
    await channel.close()
    await asyncio.to_thread(os.waitpid, pid, 0)


async def test_answers_that_come_too_late_end_nothing() -> None:
    ours, theirs = socket.socketpair()
    channel = await ControlChannel.over(ours, speaks_tools=True)
    numbers = [*range(2, 2 + MAX_UNASKED), 1]
    theirs.sendall(b"".join(b'{"id": %d, "result": {}}\n' % number for number in numbers))
    assert await channel.call("hello", {}, timeout_s=5.0) == {}
    assert not channel.is_closed
    await channel.close()
    theirs.close()
