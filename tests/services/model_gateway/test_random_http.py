"""Random bytes at every route of the gateway and of operations: no 5xx, ids on answers, no task is left."""

import asyncio
import json
import random
from typing import Final

import aiohttp
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.support.fuzzing import CASES, SEED, randomness
from tests.support.waiting import until

OPERATIONS: Final = ("/livez", "/readyz", "/metrics")
VERBS: Final = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "\x00", "")
HEADS: Final = (
    "host: x",
    "host: x\r\nhost: y",
    "content-length: 5",
    "content-length: -1",
    "content-length: 5\r\ncontent-length: 9",
    "transfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: 3",
    "transfer-encoding: gzip, chunked",
    "content-encoding: zstd",
    "content-encoding: gzip",
    "expect: 100-continue",
    "upgrade: websocket\r\nconnection: upgrade",
    f"authorization: Bearer {KEY}",
    "authorization: Basic eA==",
    "x-api-key: \x1b[2J",
    "traceparent: 00-zz",
    "connection: close",
    "content-type: application/json",
    "content-type: multipart/form-data; boundary=x",
    "range: bytes=0-",
    "cookie: " + "c" * 4000,
    "x: " + "v" * 9000,
    "bad header",
    ": empty",
    "x-session-id: ../../etc",
    "accept: text/html",
    "http2-settings: AAMAAABkAAQ",
)
BODIES: Final = (
    b"",
    b"{}",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"zz\r\n",
    b"\x28\xb5\x2f\xfd" + b"\x00" * 20,
    b"[" * 500,
)


def request_of(dice: random.Random, path: str) -> bytes:
    """Mostly HTTP."""
    if dice.random() < 0.1:
        return dice.randbytes(dice.randint(1, 3000))
    path = dice.choice(
        (path, path, path + "/%00%ff", path + "?a=" + "b" * 50, "//" + path, path.upper(), "*", "../" + path)
    )
    heads = "\r\n".join(dice.sample(HEADS, dice.randint(0, 5)))
    first = f"{dice.choice(VERBS)} {path} HTTP/{dice.choice(('1.1', '1.1', '1.0', '2.0', '9'))}"
    raw = f"{first}\r\n{heads}\r\n\r\n".encode() + dice.choice(BODIES)
    if dice.random() < 0.2:
        raw = raw[: dice.randint(1, len(raw))]
    return raw


async def answer_of(port: int, raw: bytes) -> bytes:
    """All that comes back; nothing where the server hangs up at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def check(raw: bytes, answer: bytes) -> None:
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    shown = f"seed {SEED}: {raw[:600]!r} -> {answer[:600]!r}"
    assert status < 500, shown
    if status == 100:
        return
    assert b"x-request-id: " in head.lower(), shown
    if status >= 400 and body:
        assert json.loads(body.partition(b"HTTP/1.")[0])["request_id"], shown


@pytest.mark.parametrize("place", ["public", "operations"])
async def test_no_random_bytes_are_answered_with_a_5xx(gateway: Gateway, place: str) -> None:
    port, paths = gateway.service.http_port, OPERATIONS
    if place == "public":
        async with aiohttp.ClientSession(gateway.url) as http, http.get("/openapi.json") as described:
            port, paths = gateway.port, tuple((await described.json())["paths"])
    before = len(asyncio.all_tasks())
    for path in paths:
        dice = randomness(path)
        for _ in range(5 * CASES):
            raw = request_of(dice, path)
            check(raw, await answer_of(port, raw))
    await until(lambda: len(asyncio.all_tasks()) <= before + 2, "the tasks of the requests to end")
