"""What a link does to the bytes of the process that uses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.chaos.proxy import Link, LinkMode

from service_kit.ports import LOOPBACK

LIMIT_S = 30.0


@asynccontextmanager
async def shouting(word: bytes) -> AsyncIterator[int]:
    """A server that answers each line with `word` and the line; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(word + line)
        except OSError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def linked(*ports: int) -> AsyncIterator[Link]:
    link = Link("sampler", "echo", [(LOOPBACK, port) for port in ports])
    await link.serve()
    try:
        async with asyncio.timeout(LIMIT_S):
            yield link
    finally:
        await link.close()


async def say(link: Link, line: bytes) -> bytes:
    """What comes back over a new connection."""
    reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()


async def test_replicas_take_turns_and_one_that_is_away_is_passed_over() -> None:
    async with shouting(b"a ") as first, shouting(b"b ") as second:
        async with linked(first, second) as link:
            assert {await say(link, b"x\n"), await say(link, b"x\n")} == {b"a x\n", b"b x\n"}
        async with linked(1, second) as link:
            assert [await say(link, b"x\n") for _ in range(2)] == [b"b x\n"] * 2


async def test_a_cut_ends_old_connections_and_new_ones_until_it_is_healed() -> None:
    async with shouting(b"") as port, linked(port) as link:
        reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
        writer.write(b"before\n")
        assert await reader.readline() == b"before\n"
        link.set(LinkMode.CUT)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(ConnectionResetError):
            await say(link, b"during\n")
        link.set(LinkMode.OPEN)
        assert await say(link, b"after\n") == b"after\n"


async def test_silence_loses_nothing_and_refuses_nothing() -> None:
    async with shouting(b"") as port, linked(port) as link:
        link.set(LinkMode.SILENT)
        waiting = asyncio.create_task(say(link, b"late\n"))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        link.set(LinkMode.OPEN)
        assert await waiting == b"late\n"


async def test_an_upload_breaks_after_so_many_bytes_and_a_small_one_passes() -> None:
    head = b"PUT /bucket/key?partNumber=2&uploadId=u HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    async with shouting(b"") as port, linked(port) as link:
        link.set(LinkMode.BREAKS_UPLOADS, after_bytes=1000)
        assert await say(link, head % 10 + b"0123456789") == head.split(b"\r\n")[0] + b"\r\n"
        reader, writer = await asyncio.open_connection(LOOPBACK, link.port)
        writer.write(head % 5000 + b"x" * 5000)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert (link.broken_uploads, link.broken_parts) == (1, 1)
