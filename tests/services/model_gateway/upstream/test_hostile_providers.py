"""Providers that lie about usage, ask for absurd pauses, answer in absurd shapes and repeat the key."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from tests.services.model_gateway.conftest import KEY as OWN_KEY
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.upstream.provider_double import KEY, ProviderDouble

ASK: Any = {"messages": [{"role": "user", "content": "why?"}]}
LIES: list[Any] = [
    {"prompt_tokens": -1_000_000_000, "completion_tokens": -5},
    {"prompt_tokens": 10**30, "completion_tokens": 1},
    {"prompt_tokens": 2**31, "completion_tokens": 1},
    {"prompt_tokens": "many", "completion_tokens": 1},
    {"prompt_tokens": [1], "completion_tokens": 1},
    {"prompt_tokens": True, "completion_tokens": True},
    {"prompt_tokens": 0, "completion_tokens": 0},
    {"total_tokens": 12},
]
PAUSES = [
    "inf",
    "1e400",
    "nan",
    "-5",
    "9" * 400,
    "Thu, 01 Jan 9999 00:00:00 GMT",
    "Thu, 01 Jan 0001 00:00 +2359",
]
MESSAGES: list[Any] = [
    "hi",
    {"content": 5},
    {"content": ["a"]},
    {"content": "a", "reasoning": 5},
    {"tool_calls": "x"},
    {"tool_calls": [1]},
    {"tool_calls": [{"index": {}, "function": {}}]},
    {"tool_calls": [{"function": "f"}]},
    {"tool_calls": [{"function": {"name": 5, "arguments": {}}}]},
]
ODD: list[Any] = [
    5,
    "text",
    {"a": 1},
    [None],
    ["x"],
    [{"index": "x"}],
    [{"index": -1}],
    [{"finish_reason": {"a": 1}}],
    [{"logprobs": {"content": [1]}}],
    [{"logprobs": {"content": [{"token": "it"}]}}],
    *([{name: said, "weight_versions": 5}] for name in ("message", "delta") for said in MESSAGES),
]


async def post(
    gateway: Gateway, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    asked = {"model": "acme/large", **body}
    headers["Authorization"] = f"Bearer {OWN_KEY}"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(gateway.url + path, json=asked) as reply,
    ):
        return reply.status, (await reply.read()).decode(), reply.headers


async def in_flight(gateway: Gateway) -> int:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {OWN_KEY}"}) as session,
        session.get(f"{gateway.url}/upcycle/v1/usage") as reply,
    ):
        return int((await reply.json())["in_flight"])


async def test_a_usage_that_cannot_be_is_counted_by_length(gateway: Gateway, acme: ProviderDouble) -> None:
    for usage in LIES:
        acme.usage = usage
        for stream in (False, True):
            status, text, _ = await post(gateway, {**ASK, "stream": stream})
            assert (status, "error" in text) == (200, False), usage
    for row in await gateway.usage(2 * len(LIES)):
        assert 0 < row["cost"] < 1
        assert row["prompt_tokens"] > 0
        assert row["completion_tokens"] > 0
    assert await in_flight(gateway) == 0


async def test_a_usage_sent_at_the_start_does_not_hide_what_came_before_a_client_left(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    early = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    word = {"choices": [{"index": 0, "delta": {"content": "word " * 400}}]}
    acme.events = [f"data: {json.dumps(one)}\n\n" for one in (early, word)]
    acme.endless = True
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {OWN_KEY}"}) as session,
        session.post(
            f"{gateway.url}/v1/chat/completions", json={"model": "acme/large", "stream": True, **ASK}
        ) as reply,
    ):
        await reply.content.readuntil(b"word")
    (row,) = await gateway.usage(1)
    assert row["completion_tokens"] >= 500


@pytest.mark.parametrize("entry", [{"first_byte_s": 0.3}])
async def test_an_answer_that_came_too_late_costs_its_prompt(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any]
) -> None:
    acme.stall_head = True
    assert (await post(gateway, ASK))[0] == 504
    acme.stall_head, acme.body = False, b"garbage"
    assert (await post(gateway, ASK))[0] == 502
    assert all(row["prompt_tokens"] > 0 and row["cost"] > 0 for row in await gateway.usage(2))


@pytest.mark.parametrize("entry", [{"opens_after": 1000}])
async def test_an_absurd_pause_is_at_most_a_day(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any]
) -> None:
    acme.refuse = 429
    for said in PAUSES:
        acme.headers = {"retry-after": said}
        status, text, headers = await post(gateway, ASK)
        assert status == 429, text
        assert 1 <= int(headers["retry-after"]) <= 86_400


@pytest.mark.parametrize("entry", [{"opens_after": 1000}])
async def test_no_part_of_a_key_is_shown_where_what_a_provider_sent_is_cut(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any]
) -> None:
    for start in (0, 195, 280, 295, (1 << 14) - 9):
        body = b" " * (start - 20) + b"x" * min(start, 20) + KEY.encode() + b" and more"
        acme.body, acme.events = body, [f"data: {body.decode()}\n\n"]
        for stream in (False, True):
            _, text, _ = await post(gateway, {**ASK, "stream": stream})
            assert "cannot be read" in text
            assert KEY[:5] not in text


async def test_a_key_in_a_providers_reason_or_field_is_not_shown(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    acme.body = json.dumps({"content": [], "stop_reason": "x" * 70 + KEY}).encode()
    status, text, _ = await post(gateway, {**ASK, "model": "claudia/large"})
    assert (status, KEY[:5] in text) == (502, False)
    acme.refuse, acme.said = 400, {"error": {"message": "no", "param": KEY}}
    status, text, _ = await post(gateway, ASK)
    assert (status, KEY[:5] in text) == (400, False)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("entry", [{"opens_after": 100_000}])
async def test_an_answer_of_an_absurd_shape_is_the_providers_fault(
    gateway: Gateway, acme: ProviderDouble, path: str, entry: dict[str, Any]
) -> None:
    ask = {"input": "why?"} if path == "/v1/responses" else {**ASK, "max_tokens": 9}
    for number, odd in enumerate(ODD):
        acme.body = json.dumps({"id": "c", "choices": odd}).encode()
        acme.events = [f"data: {acme.body.decode()}\n\n", "data: [DONE]\n\n"]
        for stream in (False, True):
            session = {"X-Session-ID": f"s-{number}-{stream}"} if number % 2 else {}
            status, text, _ = await post(gateway, {**ask, "stream": stream}, path, **session)
            assert status in (200, 502), (odd, stream, text)
            assert "internal_error" not in text, (odd, stream, text)
    assert await in_flight(gateway) == 0


async def test_content_in_parts_is_its_text(gateway: Gateway, acme: ProviderDouble) -> None:
    parts = [
        {"type": "thinking", "text": "so"},
        {"type": "text", "text": "the"},
        {"type": "text", "text": " pool"},
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}
    acme.body = json.dumps({"choices": [choice]}).encode()
    _, text, _ = await post(gateway, ASK)
    assert json.loads(text)["choices"][0]["message"]["content"] == "the pool"
