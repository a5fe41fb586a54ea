"""A port under clients that take what they can: silent, slow, without end, or no HTTP at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from tests.support.waiting import until

from service_kit.descriptors import raise_descriptor_limit
from service_kit.groups import EdgeSettings
from service_kit.http_limits import PortLimits
from service_kit.http_port import HttpPort

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Answers at once, when told to, or without end."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.waiting = 0
        self.stream_ended = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self._now)
        app.router.add_get("/later", self._later)
        app.router.add_get("/stream", self._stream)
        app.router.add_get("/broken", self._broken)
        return app

    async def _now(self, _: web.Request) -> web.Response:
        return web.Response(text="here")

    async def _later(self, _: web.Request) -> web.Response:
        self.waiting += 1
        await self.may_answer.wait()
        return web.Response(text="late")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * 65_536)
        finally:
            self.stream_ended.set()

    async def _broken(self, _: web.Request) -> web.Response:
        raise RuntimeError("password=hunter2hunter2")


@pytest.fixture
async def app() -> App:
    return App()


@asynccontextmanager
async def listening(app: App, **settings: Any) -> AsyncIterator[int]:
    limits = PortLimits.of(EdgeSettings(**settings))
    http = HttpPort(app.application(), limits, handler_cancellation=True, shutdown_timeout=0.1)
    await http.start("127.0.0.1", 0)
    try:
        yield cast(int, http.port)
    finally:
        await http.stop()


class Client:
    """A socket that sends what a test says. host: of its own address, on Linux any of 127.0.0.0/8."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, port: int, host: str = "127.0.0.1") -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0)))

    async def ask(self, request: bytes = GET) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body

    async def is_ended(self) -> bool:
        with suppress(ConnectionError):
            return await self.reader.read(1) == b""
        return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
async def client() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def connected(port: int, host: str = "127.0.0.1") -> Client:
            made = await Client.to(port, host)
            stack.push_async_callback(made.close)
            return made

        yield connected


async def test_new_clients_are_answered_beside_five_thousand_silent_sockets(app: App, client: Any) -> None:
    """Of one address, which has at most 300 of them; the newest, of whichever address, are answered."""
    raise_descriptor_limit()
    async with listening(app, connections=1000, connections_per_peer=300) as port:
        early = await client(port)
        for _ in range(50):
            await asyncio.gather(*(client(port) for _ in range(100)))
        assert (await (await client(port, "127.0.0.2")).ask())[0] == 200
        assert (await (await client(port)).ask())[0] == 200
        assert await early.is_ended()


async def test_connections_at_work_are_not_ended_for_new_ones_which_are_refused(
    app: App, client: Any
) -> None:
    async with listening(app, connections=3, connections_per_peer=2) as port:
        busy = [await client(port), await client(port)]
        for one in busy:
            one.writer.write(GET.replace(b"/ ", b"/later "))
        await until(lambda: app.waiting == 2, "both requests to be at work")
        status, headers, body = await (await client(port)).answer()
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert headers["x-request-id"] == json.loads(body)["request_id"]
        assert "UPCYCLE_EDGE_CONNECTIONS_PER_PEER" in json.loads(body)["error"]["message"]
        other = await client(port, "127.0.0.2")
        other.writer.write(GET.replace(b"/ ", b"/later "))
        await until(lambda: app.waiting == 3, "the request of another address to be at work")
        status, _, body = await (await client(port, "127.0.0.3")).answer()
        assert status == 503
        assert "UPCYCLE_EDGE_CONNECTIONS," not in json.loads(body)["error"]["message"]
        assert "raise UPCYCLE_EDGE_CONNECTIONS" in json.loads(body)["error"]["message"]
        app.may_answer.set()
        assert [(await one.answer())[2] for one in (*busy, other)] == [b"late"] * 3
        assert (await (await client(port)).ask())[0] == 200  # the places are free, or can be made free


async def test_an_address_in_front_has_no_limit_of_one_peer(app: App, client: Any) -> None:
    async with listening(app, connections_per_peer=1, front="127.0.0.1") as port:
        both = [await client(port), await client(port)]
        for one in both:
            one.writer.write(GET.replace(b"/ ", b"/later "))
        await until(lambda: app.waiting == 2, "both requests to be at work")


@pytest.mark.parametrize("before", [b"", GET])
async def test_the_head_of_a_request_has_a_deadline(app: App, client: Any, before: bytes) -> None:
    async with listening(app, header_s=0.2) as port:
        slow = await client(port)
        if before:
            assert (await slow.ask(before))[0] == 200
        status, headers, body = await slow.ask(b"GET / HT")
        assert (status, headers["connection"]) == (408, "close")
        assert "UPCYCLE_EDGE_HEADER_S" in json.loads(body)["error"]["message"]
        assert await slow.is_ended()


async def test_a_connection_that_sends_nothing_is_ended(app: App, client: Any) -> None:
    async with listening(app, header_s=0.2) as port:
        assert await (await client(port)).is_ended()


async def test_between_requests_a_connection_may_wait_longer(app: App, client: Any) -> None:
    async with listening(app, header_s=0.1, idle_s=0.6) as port:
        idle = await client(port)
        assert (await idle.ask())[0] == 200
        await asyncio.sleep(0.3)
        assert (await idle.ask())[0] == 200
        assert await idle.is_ended()


async def test_a_client_that_does_not_read_is_ended(app: App, client: Any) -> None:
    async with listening(app, stall_s=0.2) as port:
        (await client(port)).writer.write(GET.replace(b"/ ", b"/stream "))
        await until(app.stream_ended.is_set, "the stream to end")


async def test_every_answer_has_an_id_and_what_is_no_http_gets_the_envelope(app: App, client: Any) -> None:
    async with listening(app) as port:
        for noise in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01",
            b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 9000 + b"\r\n\r\n",
        ):
            status, headers, body = await (await client(port)).ask(noise + b"\r\n\r\n")
            said = json.loads(body)
            assert (status, said["error"]["code"]) == (400, "malformed_request")
            assert headers["x-request-id"] == said["request_id"]
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/broken") as broken:
            said = await broken.json()
            assert (broken.status, said["error"]["code"]) == (500, "internal_error")
            assert "hunter2" not in await broken.text()
            assert broken.headers["x-request-id"] == said["request_id"]
        assert (await (await client(port)).ask())[1]["x-request-id"].startswith("req-")
