"""Bytes that no client library sends, at every route that takes a body: refused by name, never a 5xx, and the
gateway and its engine go on."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

from model_gateway.domain.dialects.table import DIALECTS

PATHS: Final = tuple(dialect.path for dialect in DIALECTS)
HEADERS: Final = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
VALID: Final[Mapping[str, Any]] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "why?"}],
    "prompt": "why?",
    "input": "why?",
    "tokens": [1, 2],
    "token_ids": [1, 2],
    "sampling_params": {"max_tokens": 2},
    "max_tokens": 2,
    "max_completion_tokens": 2,
    "max_output_tokens": 2,
    "n": 2,
}
DEEP: Final = b"[" * 1000 + b"]" * 1000


def asked(url: str, raw: bytes, headers: Mapping[str, str] = HEADERS) -> httpx2.Response:
    return httpx2.post(url, content=raw, headers=dict(headers), timeout=60)


def check_refused(reply: httpx2.Response, status: int = 400) -> dict[str, Any]:
    said: dict[str, Any] = reply.json()
    assert reply.status_code == status, reply.text[:300]
    assert said["request_id"] == reply.headers["x-request-id"]
    assert len(reply.content) < 4096
    error: dict[str, Any] = said["error"]
    return error


def check_answers(gateway: Gateway) -> None:
    body = {"model": MODEL, "messages": VALID["messages"], "max_tokens": 1}
    assert asked(f"{gateway.url}/v1/chat/completions", json.dumps(body).encode()).status_code == 200


@pytest.mark.parametrize("path", [*PATHS, "/v1/sessions/mine/reward"])
async def test_what_nests_a_thousand_levels_is_refused_whatever_field_holds_it(
    speaking: Gateway, path: str
) -> None:
    for name in (*VALID, "temperature", "group", "score"):
        given = {one: value for one, value in VALID.items() if one != name}
        raw = json.dumps(given)[:-1].encode() + b', "' + name.encode() + b'": ' + DEEP + b"}"
        check_refused(await asyncio.to_thread(asked, speaking.url + path, raw))


@pytest.mark.parametrize("path", PATHS)
async def test_numbers_and_names_without_end_are_refused(speaking: Gateway, path: str) -> None:
    fields = next(dialect.fields for dialect in DIALECTS if dialect.path == path)
    whole = [name for name, field in fields.items() if "integer" in field.kind.split("|")]
    for name in whole:
        raw = json.dumps({**VALID, name: 2**63}).encode()
        check_refused(await asyncio.to_thread(asked, speaking.url + path, raw))
    error = check_refused(
        await asyncio.to_thread(asked, speaking.url + path, json.dumps({"x" * 1_000_000: 1}).encode())
    )
    assert error["code"] in ("unknown_parameter", "invalid_value")


async def test_a_message_of_nothing_is_refused(speaking: Gateway) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": []}]}
    reply = await asyncio.to_thread(asked, f"{speaking.url}/v1/messages", json.dumps(body).encode())
    assert check_refused(reply)["param"] == "messages[0].content"


@pytest.mark.parametrize(
    ("headers", "raw"),
    [
        ({"Content-Encoding": "gzip"}, b"this is not gzip"),
        ({"Content-Encoding": "gzip"}, gzip.compress(b'{"model": 1}', mtime=0)[:-9]),
        ({}, b'{"model": "\\ud800"}'),
        ({}, b"\xff\xfe"),
        ({}, b'{"model": NaN}'),
        ({}, b'{"model": 1e999}'),
        ({}, b""),
        ({}, b"null"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/sessions/mine/reward"])
async def test_a_body_that_is_broken_is_the_clients_fault(
    speaking: Gateway, path: str, headers: dict[str, str], raw: bytes
) -> None:
    reply = await asyncio.to_thread(asked, speaking.url + path, raw, {**HEADERS, **headers})
    check_refused(reply)


async def sent(gateway: Gateway, request: bytes) -> bytes:
    """What a raw connection answers; nothing where the gateway hangs up at once."""
    where = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


AUTHORIZED: Final = f"Host: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n".encode()


@pytest.mark.parametrize(
    "parts",
    [
        (b"GET /v1/models/\xff\xfe HTTP/1.1\r\n", AUTHORIZED, b"Connection: close\r\n\r\n"),
        (b"GET /\xed\xa0\x80 HTTP/1.1\r\n", AUTHORIZED, b"Connection: close\r\n\r\n"),
        (
            b"POST /v1/completions HTTP/1.1\r\n",
            AUTHORIZED,
            b"Transfer-Encoding: chunked\r\n\r\n",
            b"zz\r\nno",
        ),
        (b"POST /v1/completions HTTP/1.1\r\n", AUTHORIZED, b"Content-Length: -5\r\n\r\n", b"{}"),
        (b"POST /v1/completions HTTP/1.1\r\n", AUTHORIZED, b"Content-Length: 5000\r\n\r\n", b"{}"),
        (b"GET /v1/models HTTP/1.1\r\n", AUTHORIZED, *(b"X-H: " + b"y" * 4000 + b"\r\n",) * 40, b"\r\n"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n", AUTHORIZED, b"\r\n"),
        (
            b"POST /v1/completions HTTP/1.1\r\n",
            AUTHORIZED,
            b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}",
        ),
    ],
)
async def test_bytes_that_are_no_http_get_no_5xx(speaking: Gateway, parts: tuple[bytes, ...]) -> None:
    answer = await sent(speaking, b"".join(parts))
    assert not answer or int(answer.split(b" ")[1]) < 500, answer[:200]
    await asyncio.to_thread(check_answers, speaking)


@pytest.mark.parametrize("session_id", ["%00", "a%2Fb", "%E2%98%83", "x" * 4000, "..%2F..%2Fetc", "%FF"])
async def test_a_reward_of_what_is_no_session_id_is_not_found(speaking: Gateway, session_id: str) -> None:
    url = f"{speaking.url}/v1/sessions/{session_id}/reward"
    error = check_refused(await asyncio.to_thread(asked, url, b'{"score": 1}'), 404)
    assert error["code"] in ("session_not_found", "unknown_url")
