"""Random bytes that are nearly HTTP, and what every server of ours answers them.

FUZZ_CASES and FUZZ_SEED say how many and which; a failure shows the seed and the bytes.
"""

import asyncio
import json
import random
from typing import Final

from tests.support.fuzzing import SEED

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


def request_of(dice: random.Random, path: str, *more_heads: str) -> bytes:
    """Mostly HTTP. more_heads: lines that some requests have besides, such as a key."""
    if dice.random() < 0.1:
        return dice.randbytes(dice.randint(1, 3000))
    path = dice.choice(
        (path, path, path + "/%00%ff", path + "?a=" + "b" * 50, "//" + path, path.upper(), "*", "../" + path)
    )
    heads = "\r\n".join(dice.sample((*HEADS, *more_heads), dice.randint(0, 5)))
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


def check_answer(raw: bytes, answer: bytes) -> None:
    """Refused or answered, with an id of the request: no 5xx."""
    if not answer:
        return
    head, _, _ = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    assert status < 500, _shown(raw, answer)
    assert status == 100 or b"x-request-id: " in head.lower(), _shown(raw, answer)


def check_envelope(raw: bytes, answer: bytes) -> None:
    """As `check_answer`, and what refuses names the request in its JSON."""
    check_answer(raw, answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    if body and head.split(b" ", 2)[1].startswith((b"4", b"5")):
        # The answer to the bytes that follow may come behind it.
        first, _ = json.JSONDecoder().raw_decode(body.decode())
        assert first["request_id"], _shown(raw, answer)


def _shown(raw: bytes, answer: bytes) -> str:
    return f"seed {SEED}: {raw[:600]!r} -> {answer[:600]!r}"
