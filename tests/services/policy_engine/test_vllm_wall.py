"""What gets through the wall before vLLM: on a real uvicorn, with an application that would do anything."""

import asyncio
import json
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from tests.certificates import Authority
from tests.services.policy_engine.walled_server import KEY, WITH_KEY, Engine, walled
from tests.support.waiting import until

from embedded_engine.engine import EmbeddedEngine
from embedded_engine.http import server
from policy_engine.adapters.in_vllm import upcycle_vllm_wall as wall
from service_kit.groups import EdgeSettings

COMPLETIONS = "/v1/completions"
CHUNKED = b"transfer-encoding: chunked\r\n"


@pytest.fixture(autouse=True)
def of_this_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wall.KEY_VARIABLE, KEY)


@pytest.fixture
async def engine() -> Engine:
    return Engine()


async def asked(port: int, method: str, path: str, **more: Any) -> tuple[int, Any, str]:
    """Status, body and id of an answer."""
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, **more) as reply:
        return reply.status, json.loads(await reply.read()), reply.headers["x-request-id"]


async def said_to(port: int, *parts: bytes) -> bytes:
    """All that the port answers to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    said = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return said


def head(path: str, *lines: bytes, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n".encode() + b"".join(lines) + b"\r\n"


def refusal(said: bytes) -> tuple[int, str]:
    """Status and type of a refusal, whose envelope is whole."""
    top, _, body = said.partition(b"\r\n\r\n")
    reply = json.loads(body)
    assert set(reply) == {"error", "request_id"}
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert f"x-request-id: {reply['request_id']}".encode() in top
    assert b"connection: close" in top
    return reply["error"]["code"], reply["error"]["type"]


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_steering_needs_the_key_and_sampling_does_not(engine: Engine, http: str) -> None:
    async with walled(engine, http) as port:
        for path in ("/pause", "/collective_rpc", "/v1/load_lora_adapter", "/sleep", "/not/known/here"):
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
                status, reply, request_id = await asked(port, "POST", path, headers=given, json={})
                assert (status, reply["error"]["type"]) == (401, "AuthenticationError")
                assert reply["request_id"] == request_id
            assert (await asked(port, "POST", path, headers=WITH_KEY, json={}))[0] == 200
        assert len(engine.seen) == 5
        assert (await asked(port, "POST", COMPLETIONS, data=b"12345"))[:2] == (200, {"bytes": 5})
        assert (await asked(port, "GET", "/health"))[:2] == (200, {"bytes": 0})


OTHER_SPELLINGS = (
    ("GET", "/pause"),
    ("POST", "/health"),
    ("DELETE", COMPLETIONS),
    ("OPTIONS", COMPLETIONS),
    ("POST", "//pause"),
    ("POST", f"{COMPLETIONS}/../../pause"),
    ("POST", f"{COMPLETIONS}%2F..%2F..%2Fpause"),
    ("POST", "/%70ause"),
    ("POST", f"{COMPLETIONS}/"),
    ("POST", "http://127.0.0.1/pause"),
    ("GET", "/metrics/../pause"),
    ("GET", "/docs"),
)


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_no_other_spelling_of_a_route_is_open(engine: Engine, http: str) -> None:
    async with walled(engine, http) as port:
        for method, path in OTHER_SPELLINGS:
            said = await said_to(port, head(path, b"content-length: 0\r\n", method=method))
            assert refusal(said) == (401, "AuthenticationError"), (method, path)
    assert not engine.seen


async def test_two_keys_are_no_key(engine: Engine) -> None:
    async with walled(engine) as port:
        right, wrong = f"authorization: Bearer {KEY}\r\n".encode(), b"authorization: Bearer wrong\r\n"
        for given in ((right, wrong), (wrong, right), (right, right)):
            said = await said_to(port, head("/pause", *given, b"content-length: 0\r\n"))
            assert refusal(said) == (401, "AuthenticationError")
    assert not engine.seen


async def test_without_a_key_of_its_own_nothing_steers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for none in (None, ""):
        monkeypatch.delenv(wall.KEY_VARIABLE, raising=False) if none is None else monkeypatch.setenv(
            wall.KEY_VARIABLE, none
        )
        async with walled(engine) as port:
            for given in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer"}):
                assert (await asked(port, "POST", "/pause", headers=given))[0] == 401
            assert (await asked(port, "POST", COMPLETIONS))[0] == 200


async def test_a_large_body_is_refused_with_and_without_its_length(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wall.BODY_BYTES_VARIABLE, "1000")
    async with walled(engine) as port:
        assert refusal(await said_to(port, head(COMPLETIONS, b"content-length: 1001\r\n")))[0] == 413
        chunk = b"200\r\n" + b"x" * 512 + b"\r\n"
        assert refusal(await said_to(port, head(COMPLETIONS, CHUNKED), chunk, chunk))[0] == 413
        whole = await asked(port, "POST", COMPLETIONS, data=b"x" * 1000)
        assert whole[:2] == (200, {"bytes": 1000})

        async def in_chunks() -> Any:
            for _ in range(10):
                yield b"x" * 100

        assert (await asked(port, "POST", COMPLETIONS, data=in_chunks()))[:2] == (200, {"bytes": 1000})
        keyed = await asked(port, "POST", "/pause", data=b"x" * 1001, headers=WITH_KEY)
        assert keyed[0] == 413
    assert engine.seen == [COMPLETIONS, COMPLETIONS]


@pytest.mark.parametrize("framing", [b"content-length: 100\r\n", CHUNKED])
async def test_a_body_that_does_not_arrive_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, framing: bytes
) -> None:
    monkeypatch.setenv("UPCYCLE_EDGE_BODY_S", "0.3")
    async with walled(engine) as port:
        said = await said_to(port, head(COMPLETIONS, framing), b"5\r\nxxxxx\r\n")
        assert refusal(said) == (408, "request_timeout")
        assert b"UPCYCLE_EDGE_BODY_S" in said
    assert not engine.seen


async def test_requests_beyond_the_limit_are_refused_but_not_those_of_the_supervisor(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_EDGE_CONNECTIONS", "2")
    engine.may_answer.clear()
    async with walled(engine) as port:
        busy = [asyncio.create_task(asked(port, "POST", COMPLETIONS, data=b"x")) for _ in range(2)]
        await until(lambda: len(engine.seen) == 2, "two requests in the engine")
        said = await said_to(port, head(COMPLETIONS, b"content-length: 1\r\n"), b"x")
        assert refusal(said) == (503, "too_many_requests")
        assert b"retry-after: 1" in said
        keyed = [
            asyncio.create_task(asked(port, "POST", "/pause", headers=WITH_KEY)),
            asyncio.create_task(asked(port, "GET", "/health")),
        ]
        await until(lambda: len(engine.seen) == 4, "steering and health in the engine")
        engine.may_answer.set()
        assert [answer[0] for answer in await asyncio.gather(*busy, *keyed)] == [200] * 4
        assert (await asked(port, "POST", COMPLETIONS, data=b"x"))[0] == 200


async def test_one_address_does_not_take_every_place(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPCYCLE_EDGE_CONNECTIONS_PER_PEER", "1")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")  # as the supervisor does
    engine.may_answer.clear()
    async with walled(engine) as port:
        busy = asyncio.create_task(asked(port, "POST", COMPLETIONS, data=b"x"))
        await until(lambda: engine.seen, "a request in the engine")
        full = head(COMPLETIONS, b"content-length: 1\r\nx-forwarded-for: 192.0.2.1\r\n") + b"x"
        assert refusal(await said_to(port, full)) == (503, "too_many_requests")
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.9", 0))
        async with aiohttp.ClientSession(connector=connector) as session:
            other = asyncio.create_task(session.post(f"http://127.0.0.1:{port}{COMPLETIONS}", data=b"x"))
            await until(lambda: len(engine.seen) == 2, "a request of another address")
            engine.may_answer.set()
            assert (await other).status == 200
        assert (await busy)[0] == 200


async def test_a_front_speaks_for_many(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPCYCLE_EDGE_CONNECTIONS_PER_PEER", "1")
    monkeypatch.setenv("UPCYCLE_EDGE_FRONT", "10.0.0.1, 127.0.0.1")
    engine.may_answer.clear()
    async with walled(engine) as port:
        busy = [asyncio.create_task(asked(port, "POST", COMPLETIONS, data=b"x")) for _ in range(3)]
        await until(lambda: len(engine.seen) == 3, "three requests of the front")
        engine.may_answer.set()
        assert [answer[0] for answer in await asyncio.gather(*busy)] == [200] * 3


async def test_bodies_that_do_not_end_fill_no_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wall.BODY_BYTES_VARIABLE, "1000")
    held = []
    async with walled(engine) as port:
        for _ in range(32):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head(COMPLETIONS, b"content-length: 1000\r\n") + b"x" * 999)
            held.append((reader, writer))

        async def is_full() -> bool:
            async with aiohttp.ClientSession() as session:
                reply = await session.post(f"http://127.0.0.1:{port}{COMPLETIONS}", data=b"x" * 100)
                return reply.status == 503 and "too_many_bytes" in await reply.text()

        await until(is_full, "32 bodies, but for one byte each, are held")
        for _, writer in held:
            writer.close()

        async def is_free() -> bool:
            return (await asked(port, "POST", COMPLETIONS, data=b"x" * 100))[0] == 200

        await until(is_free, "the bytes of those that left are free")


@pytest.mark.parametrize("framing", [b"content-length: 1\r\n\r\nx", CHUNKED + b"\r\n1\r\nx\r\n0\r\n\r\n"])
async def test_what_only_reads_has_no_body_and_needs_no_place(engine: Engine, framing: bytes) -> None:
    async with walled(engine) as port:
        said = await said_to(port, b"GET /health HTTP/1.1\r\nhost: x\r\n" + framing)
        assert refusal(said) == (413, "request_too_large")
    assert not engine.seen


async def test_a_stream_passes_as_it_is_made(engine: Engine) -> None:
    async with (
        walled(engine) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.post(f"{COMPLETIONS}?stream", json={}) as reply,
    ):
        assert await asyncio.wait_for(reply.content.readline(), 30) == b"first\n"
        assert reply.headers["x-request-id"]
        engine.may_go_on.set()
        assert await asyncio.wait_for(reply.content.readline(), 30) == b"last\n"


async def test_a_client_that_leaves_is_noticed(engine: Engine) -> None:
    async with walled(engine) as port, aiohttp.ClientSession() as session:
        async with session.post(f"http://127.0.0.1:{port}{COMPLETIONS}?stream", json={}) as reply:
            await reply.content.readline()
            reply.close()
        await asyncio.wait_for(engine.left.wait(), 30)


async def test_it_stands_in_tls_too(engine: Engine, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("engine")
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    async with (
        walled(engine, ssl_certfile=pair.certificate, ssl_keyfile=pair.key) as port,
        aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session,
    ):
        assert (await session.post("/pause", ssl=trusted)).status == 401
        assert (await session.post("/pause", ssl=trusted, headers=WITH_KEY)).status == 200


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_no_websocket_is_opened_also_with_the_key(
    engine: Engine, extensions: dict[str, dict[str, str]]
) -> None:
    """uvicorn has no websockets here; vLLM's environment has them."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": "/v1/realtime",
        "headers": [(b"authorization", f"Bearer {KEY}".encode())],
        "extensions": extensions,
    }
    await wall.VllmWall(engine)(scope, receive, send)
    assert not engine.seen
    if extensions:
        assert [message["type"].rpartition(".")[2] for message in sent] == ["start", "body"]
        assert sent[0]["status"] == 403
    else:
        assert [(message["type"], message["code"]) for message in sent] == [("websocket.close", 1008)]


def test_what_it_leaves_open_is_what_the_embedded_engine_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "Serving", lambda *_, **__: SimpleNamespace(close=None))
    app = server.build_server(cast(EmbeddedEngine, None), Path(), "k")
    left_open = {
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and "AdminKey" not in route.handler.__qualname__
    }
    assert {one for one in left_open if one[0] != "HEAD"} == wall.OPEN_ROUTES


def test_its_limits_are_those_of_every_port() -> None:
    edge, limits = EdgeSettings.model_construct(), wall.Limits()
    assert limits.body_s == edge.body_s
    assert (limits.requests, limits.requests_per_peer) == (edge.connections, edge.connections_per_peer)
    assert limits.fronts == edge.fronts


def test_it_needs_no_package_and_brings_none_along() -> None:
    """vLLM's environment has its own; a folder with more in it would come before those."""
    folder = Path(wall.__file__).parent
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import upcycle_vllm_wall; print(upcycle_vllm_wall.VllmWall.__name__)"],
        env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "VllmWall\n"
    assert {path.name for path in folder.glob("*.py")} == {"__init__.py", "upcycle_vllm_wall.py"}
