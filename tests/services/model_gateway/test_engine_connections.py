"""HTTP to engines, over sockets on which a test says what the engine does."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority

from engine_client import EngineState
from model_gateway.adapters import engine_connections
from model_gateway.adapters.engine_http import HttpEngines
from model_gateway.domain.errors import EngineLost
from model_gateway.domain.routing import EngineRoute

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Script = Callable[["Engine", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Engine:
    """A socket server; `play` is called for each connection."""

    play: Script
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """One request."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        self.requests.append(head + await reader.readexactly(int(length.split(b":")[1])))


@asynccontextmanager
async def listening(play: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    engine = Engine(play)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine.connections += 1
        try:
            await engine.play(engine, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            engine.left.set()
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls) as server:
        engine.port = server.sockets[0].getsockname()[1]
        yield engine


def says(*answers: bytes) -> Script:
    """Each request gets the next of them; then the connection ends."""

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await engine.read(reader)
            writer.write(answer)

    return play


def begins(answer: bytes) -> Script:
    """An answer that does not go on."""

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read(reader)
        writer.write(answer)
        if not await reader.read(1):
            engine.left.set()

    return play


def route(engine: Engine, scheme: str = "http", path: str = "") -> EngineRoute:
    url = f"{scheme}://localhost:{engine.port}{path}"
    return EngineRoute("e", url, "incident", True, 0, "", frozenset(), EngineState.READY, "1")


@pytest.fixture
async def http() -> AsyncIterator[HttpEngines]:
    engines = HttpEngines(idle_timeout_s=0.4)
    await engines.start()
    yield engines
    await engines.stop()


async def ask(http: HttpEngines, engine: Engine, timeout_s: float = 5.0, **where: Any) -> tuple[int, bytes]:
    reply = await http.post(route(engine, **where), "/v1/x", b"{}", {"traceparent": "00-1"}, timeout_s)
    try:
        return reply.status, await reply.read()
    finally:
        reply.close()


async def test_a_connection_is_kept_for_the_next_request(http: HttpEngines) -> None:
    async with listening(says(OK, OK, OK)) as engine:
        assert [await ask(http, engine, path="/base") for _ in range(3)] == [(200, b"hi")] * 3
    assert engine.connections == 1
    head = engine.requests[0]
    assert head.startswith(b"POST /base/v1/x HTTP/1.1\r\n")
    assert head.endswith(b"\r\ntraceparent: 00-1\r\ncontent-length: 2\r\n\r\n{}")
    assert f"\r\nhost: localhost:{engine.port}\r\n".encode() in head


async def test_requests_at_once_have_a_connection_each(http: HttpEngines) -> None:
    together = asyncio.Barrier(3)

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read(reader)
        await together.wait()
        writer.write(OK)
        await reader.read(1)

    async with listening(play) as engine:
        assert await asyncio.gather(*(ask(http, engine) for _ in range(3))) == [(200, b"hi")] * 3
        assert engine.connections == 3
        await http.stop()


ANSWERS = {
    "chunks": (CHUNKED + b"1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", 200, b"hi"),
    "an interim answer before": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hi"),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "a body until the end": (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi", 200, b"hi"),
    "HTTP 1.0": (b"HTTP/1.0 503 Busy\r\ncontent-length: 2\r\n\r\nno", 503, b"no"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("cut", [False, True])
async def test_answers_are_read_however_they_end_and_are_cut(http: HttpEngines, name: str, cut: bool) -> None:
    answer, status, body = ANSWERS[name]

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read(reader)
        for part in (bytes([one]) for one in answer) if cut else (answer,):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    async with listening(play) as engine:
        assert await ask(http, engine) == (status, body)


LOST = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhi",
    "half a chunk": CHUNKED + b"5\r\nhi",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nhi",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    "another protocol": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


@pytest.mark.parametrize("name", LOST)
async def test_an_answer_that_is_none_is_a_loss(http: HttpEngines, name: str) -> None:
    async with listening(says(LOST[name])) as engine:
        with pytest.raises(EngineLost, match=r"^engine e of incident was lost: .+"):
            await ask(http, engine)
        assert engine.connections == 1


async def test_a_kept_connection_that_the_engine_closed_is_replaced_once_unseen(http: HttpEngines) -> None:
    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read(reader)
        if engine.connections == 1:
            writer.write(OK)
            await engine.read(reader)  # and ends, as if it had ended before it came
        elif len(engine.requests) == 3:
            writer.write(OK)

    async with listening(play) as engine:
        assert await ask(http, engine) == (200, b"hi")
        assert await ask(http, engine) == (200, b"hi")
        assert engine.connections == 2
        with pytest.raises(EngineLost, match="the engine closed the connection"):
            await ask(http, engine)


async def test_bytes_without_a_request_are_no_answer_to_the_next_one(http: HttpEngines) -> None:
    async with listening(says(OK + OK.replace(b"hi", b"no"), OK)) as engine:
        assert await ask(http, engine) == (200, b"hi")
        await asyncio.sleep(0.05)
        assert await ask(http, engine) == (200, b"hi")
        assert engine.connections == 2


async def test_a_connection_with_a_request_that_is_not_sent_is_not_kept(http: HttpEngines) -> None:
    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if engine.connections == 1:  # says that the body is too large, and reads none of it
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            await asyncio.sleep(5)
        await engine.read(reader)
        writer.write(OK)

    async with listening(play) as engine:
        reply = await http.post(route(engine), "/v1/x", b"x" * (20 << 20), {}, 5.0)
        assert (reply.status, await reply.read()) == (413, b"no")
        assert await ask(http, engine) == (200, b"hi")
        assert engine.connections == 2


@pytest.mark.parametrize("answer", [b"", CHUNKED + b"2\r\nhi\r\n"], ids=["head", "middle"])
async def test_silence_is_a_loss_and_ends_the_engines_request(http: HttpEngines, answer: bytes) -> None:
    async with listening(begins(answer)) as engine:
        with pytest.raises(EngineLost, match=r"it sent nothing for 0\.4 s"):
            await ask(http, engine)
        await asyncio.wait_for(engine.left.wait(), 5)


@pytest.mark.parametrize("reads", [True, False])
async def test_an_engine_that_reads_a_large_request_slowly_is_not_silent(reads: bool) -> None:
    size = 40 << 20  # ten times what the system takes beforehand

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        await reader.readuntil(b"\r\n\r\n")
        left = size
        while left and reads:
            left -= len(await reader.read(1 << 18))
            await asyncio.sleep(0.01)
        if reads:
            writer.write(OK)
        await asyncio.sleep(2.5)

    http = HttpEngines(idle_timeout_s=1.0)
    await http.start()
    async with listening(play) as engine:
        asked = http.post(route(engine), "/v1/x", b"x" * size, {}, 20.0)
        if reads:
            assert await (await asked).read() == b"hi"
        else:
            with pytest.raises(EngineLost, match="it sent nothing for 1 s"):
                await asyncio.wait_for(asked, 2.3)
    await http.stop()


async def test_a_whole_answer_has_a_deadline(http: HttpEngines) -> None:
    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await engine.read(reader)
        writer.write(CHUNKED)
        while not reader.at_eof():
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with listening(play) as engine:
        with pytest.raises(EngineLost, match="not whole in the time that a request may take"):
            await ask(http, engine, timeout_s=0.7)


@pytest.mark.parametrize("answer", [b"", CHUNKED + b"2\r\nhi\r\n"], ids=["head", "middle"])
async def test_a_caller_that_gives_up_ends_the_request_to_the_engine(
    http: HttpEngines, answer: bytes
) -> None:
    async with listening(begins(answer)) as engine:
        asking = asyncio.create_task(ask(http, engine))
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), 5)


async def test_an_engine_is_not_read_faster_than_the_client_reads(http: HttpEngines) -> None:
    part, sent = b"10000\r\n" + b"x" * 65_536 + b"\r\n", 0

    async def play(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await engine.read(reader)
        writer.write(CHUNKED)
        for _ in range(400):
            writer.write(part)
            await writer.drain()
            sent += len(part)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with listening(play) as engine:
        reply = await http.post(route(engine), "/v1/x", b"{}", {}, 30.0)
        await asyncio.sleep(0.6)  # longer than the silence that is a loss: it is the client that is silent
        assert sent < 16 << 20
        assert sum([len(chunk) async for chunk in reply.chunks()]) == 400 * 65_536


async def test_a_connection_that_nothing_uses_is_closed(
    http: HttpEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_connections, "KEPT_S", 0.2)
    async with listening(begins(OK)) as engine:
        assert await ask(http, engine) == (200, b"hi")
        await asyncio.wait_for(engine.left.wait(), 5)


async def test_stopping_closes_what_is_kept(http: HttpEngines) -> None:
    async with listening(begins(OK)) as engine:
        assert await ask(http, engine) == (200, b"hi")
        await http.stop()
        await asyncio.wait_for(engine.left.wait(), 5)
        assert http.ready() == "closed"


async def test_an_engine_that_is_not_there_is_lost_and_not_alive(http: HttpEngines) -> None:
    async with listening(says(OK)) as engine:
        pass
    with pytest.raises(EngineLost, match="ConnectionRefusedError"):
        await ask(http, engine)
    assert not await http.is_alive(route(engine))
    assert await http.loaded_version(route(engine)) is None
    with pytest.raises(EngineLost, match="no http:// or https:// URL"):
        await ask(http, engine, scheme="unix")


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
async def test_an_engine_whose_host_can_be_no_name_is_lost(http: HttpEngines, host: str) -> None:
    lost = EngineRoute("e", f"http://{host}:80", "incident", True, 0, "", frozenset(), EngineState.READY, "1")
    with pytest.raises(EngineLost, match=r"^engine e of incident was lost: Unicode"):
        await http.post(lost, "/v1/x", b"{}", {}, 1.0)
    assert not await http.is_alive(lost)


async def test_https_is_spoken_to_an_engine_whose_certificate_is_known(
    http: HttpEngines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("engine", "localhost")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pair.certificate, pair.key)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(listening(says(OK, OK), served))
        with pytest.raises(EngineLost, match="SSLCertVerificationError"):
            await ask(http, engine, scheme="https")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        trusting = HttpEngines(idle_timeout_s=1.0)
        await trusting.start()
        assert await ask(trusting, engine, scheme="https") == (200, b"hi")
        await trusting.stop()


async def test_no_header_can_bring_a_line_of_its_own(http: HttpEngines) -> None:
    async with listening(says(OK)) as engine:
        with pytest.raises(ValueError, match="line break"):
            await http.post(route(engine), "/v1/x", b"{}", {"tracestate": "a=b\r\nhost: y"}, 1.0)
        assert not engine.requests
