"""Garbage of an engine is an engine that is not usable, never a completion and never a surprise."""

import asyncio

import pytest
from tests.chaos.garbage import answers

from engine_client import EngineClient, EngineUnavailable, SamplingParams
from service_kit.ports import LOOPBACK


@pytest.mark.parametrize("number", range(len(answers(3)) - 1))
async def test_no_garbage_becomes_a_completion(number: int) -> None:
    body = answers(3)[number]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    async with server, EngineClient(f"http://{LOOPBACK}:{port}") as client:
        with pytest.raises(EngineUnavailable):
            await client.generate("incident", [1, 2], SamplingParams(max_tokens=4), timeout_s=30)
