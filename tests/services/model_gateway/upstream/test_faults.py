"""Providers that are slow, broken, cut off, busy, endless; and clients that leave."""

import asyncio
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from tests.services.model_gateway.conftest import KEY as OWN_KEY
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.upstream.provider_double import KEY, WORDS, ProviderDouble
from tests.support.waiting import until

ASK: Any = [{"role": "user", "content": "why?"}]
STREAMED = pytest.mark.parametrize("stream", [False, True])
SLOW = {"first_byte_s": 0.3, "idle_s": 0.3}


async def ask(gateway: Gateway, model: str = "acme/large", **body: Any) -> Any:
    return await gateway.client().chat.completions.with_raw_response.create(model=model, messages=ASK, **body)


async def refused(gateway: Gateway, **body: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as error:
        await ask(gateway, **body)
    assert KEY not in str(error.value.response.text)
    assert "acme" in error.value.message
    return error.value


async def collect(stream: Any, into: list[str]) -> None:
    async for chunk in stream:
        into += [choice.delta.content or "" for choice in chunk.choices]


async def circuit(gateway: Gateway) -> str:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {OWN_KEY}"}) as session,
        session.get(f"{gateway.url}/upcycle/v1/serving") as reply,
    ):
        return str((await reply.json())["providers"][0]["circuit"])


@STREAMED
@pytest.mark.parametrize("status", [503, 429])
async def test_what_may_pass_is_tried_again_before_the_first_byte(
    gateway: Gateway, acme: ProviderDouble, stream: bool, status: int
) -> None:
    acme.fail = [status]
    acme.headers = {"retry-after": "0"}
    await ask(gateway, stream=stream)
    assert len(acme.requests) == 2


@pytest.mark.parametrize(
    ("status", "expected", "code", "tries"),
    [
        (500, 502, "provider_failed", 3),
        (302, 502, "provider_failed", 1),
        (400, 400, "provider_refused", 1),
        (401, 502, "provider_refuses_gateway", 1),
        (404, 502, "provider_refuses_gateway", 1),
        (429, 429, "provider_rate_limit", 1),
    ],
)
@pytest.mark.parametrize("entry", [{"opens_after": 50}])
async def test_errors_of_a_provider_are_in_the_one_envelope(
    gateway: Gateway,
    acme: ProviderDouble,
    entry: dict[str, Any],
    status: int,
    expected: int,
    code: str,
    tries: int,
) -> None:
    acme.refuse = status
    acme.headers = {"retry-after": "17", "location": acme.url} if status in (302, 429) else {}
    for stream in (False, True):
        acme.requests.clear()
        error = await refused(gateway, stream=stream)
        assert (error.status_code, error.code) == (expected, code)
        assert len(acme.requests) <= tries
        assert error.response.headers.get("retry-after") == ("17" if status == 429 else None)
    assert (await gateway.usage(2))[0]["cost"] == 0


async def test_an_anthropic_client_reads_the_error_in_its_own_envelope(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    acme.refuse = 400
    client = anthropic.AsyncAnthropic(base_url=gateway.url, api_key=OWN_KEY, max_retries=0)
    with pytest.raises(anthropic.BadRequestError, match="provider 'claudia' refused") as error:
        await client.messages.create(model="claudia/large", max_tokens=8, messages=ASK)
    await client.close()
    assert KEY not in str(error.value.body)


@pytest.mark.parametrize("entry", [{"retry_share": 0.0}])
async def test_without_a_share_for_retries_nothing_is_tried_again(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any]
) -> None:
    acme.fail = [500]
    await refused(gateway)
    assert len(acme.requests) == 1


@STREAMED
@pytest.mark.parametrize("entry", [SLOW])
async def test_a_provider_that_does_not_begin_is_given_up_and_asked_once(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any], stream: bool
) -> None:
    acme.stall_head = True
    error = await refused(gateway, stream=stream)
    assert (error.status_code, error.code) == (504, "provider_timeout")
    assert len(acme.requests) == 1
    await until(lambda: acme.left == 1, "the provider to see that nothing waits for it")


@pytest.mark.parametrize("model", ["acme/large", "claudia/large"])
@pytest.mark.parametrize("way", ["cut_after", "stall_after"])
@pytest.mark.parametrize("entry", [SLOW])
async def test_a_stream_that_breaks_ends_with_an_error_and_is_not_asked_again(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any], way: str, model: str
) -> None:
    setattr(acme, way, 4)
    stream = await gateway.client().chat.completions.create(model=model, messages=ASK, stream=True)
    got: list[str] = []
    with pytest.raises(openai.APIError, match=f"provider '{model.partition('/')[0]}'"):
        await collect(stream, got)
    whole = "".join(got).split()
    assert whole
    assert whole == list(WORDS)[: len(whole)]
    assert len(acme.requests) == 1
    (row,) = await gateway.usage(1)
    assert row["error"] in ("provider_failed", "provider_timeout")
    assert row["cost"] > 0, "what came was paid"


@pytest.mark.parametrize("body", [b"{garbage", b"[]", b'{"choices": [1], "content": [1]}'])
@pytest.mark.parametrize("model", ["acme/large", "claudia/large"])
async def test_an_answer_that_cannot_be_read_is_said_and_asked_for_once(
    gateway: Gateway, acme: ProviderDouble, body: bytes, model: str
) -> None:
    acme.body = body
    with pytest.raises(openai.APIStatusError) as error:
        await ask(gateway, model=model)
    assert (error.value.status_code, error.value.code) == (502, "unreadable_answer")
    assert len(acme.requests) == 1


@pytest.mark.parametrize("event", ["data: {garbage\n\n", 'data: {"choices": [1]}\n\n'])
@pytest.mark.parametrize("begun", [False, True])
async def test_an_event_that_cannot_be_read_ends_the_stream(
    gateway: Gateway, acme: ProviderDouble, event: str, begun: bool
) -> None:
    first = 'data: {"choices": [{"index": 0, "delta": {"content": "it"}}]}\n\n'
    acme.events = [first, event] if begun else [event]
    acme.word_delay_s = 0.05
    with pytest.raises(openai.APIError, match="cannot be read"):
        await _read(gateway, stream=True)


@pytest.mark.parametrize("more", [{"request_timeout_s": 1.0}])
async def test_a_stream_without_end_ends_when_a_request_must(
    gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]
) -> None:
    acme.endless = True
    stream = await gateway.client().chat.completions.create(model="acme/large", messages=ASK, stream=True)
    got: list[str] = []
    with pytest.raises(openai.APIError, match="did not end its answer"):
        await collect(stream, got)
    assert len(got) > 4
    await until(lambda: acme.left == 1)


@STREAMED
async def test_a_client_that_leaves_cancels_the_providers_request_and_pays_for_its_prompt(
    gateway: Gateway, acme: ProviderDouble, stream: bool
) -> None:
    acme.stall_head, acme.stall_after = not stream, 2
    asking = asyncio.create_task(_read(gateway, stream))
    await until(lambda: bool(acme.requests))
    await asyncio.sleep(0.2)
    asking.cancel()
    await until(lambda: acme.left == 1, "the provider to see that the client left")
    (row,) = await gateway.usage(1)
    assert row["prompt_tokens"] > 0
    assert row["cost"] > 0


async def _read(gateway: Gateway, stream: bool) -> None:
    reply: Any = await gateway.client().chat.completions.create(
        model="acme/large", messages=ASK, stream=stream
    )
    async for _ in reply:
        pass


@pytest.mark.parametrize("entry", [{"opens_after": 2, "open_s": 1.5, "max_tries": 1}])
async def test_a_provider_that_fails_is_left_alone_and_probed_by_one_request(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any]
) -> None:
    acme.refuse = 500
    for _ in range(2):
        await refused(gateway)
    assert await circuit(gateway) == "open"
    error = await refused(gateway)
    assert (error.status_code, error.code) == (503, "provider_paused")
    assert error.response.headers["retry-after"] in ("1", "2")
    assert len(acme.requests) == 2

    async def half_open() -> bool:
        return await circuit(gateway) == "half_open"

    await until(half_open)
    acme.refuse, acme.stall_head = 0, True
    probe = asyncio.create_task(ask(gateway))
    await until(lambda: len(acme.requests) == 3)
    assert (await refused(gateway)).code == "provider_paused"
    acme.released.set()
    assert (await probe).status_code == 200
    assert await circuit(gateway) == "closed"
    await ask(gateway)


async def test_nothing_listens_at_the_providers_address(gateway: Gateway, acme: ProviderDouble) -> None:
    await acme.stop()
    error = await refused(gateway)
    assert (error.status_code, error.code) == (502, "provider_failed")


async def test_a_drain_finishes_a_providers_stream(gateway: Gateway, acme: ProviderDouble) -> None:
    acme.word_delay_s = 0.1
    stream = await gateway.client().chat.completions.create(model="acme/large", messages=ASK, stream=True)
    stopping = asyncio.create_task(gateway.service.stop())
    got = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(got).split() == list(WORDS)
    assert await stopping


async def test_the_key_of_a_provider_is_in_no_log(
    gateway: Gateway, acme: ProviderDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    acme.fail = [500, 500, 500, 401]
    await refused(gateway)
    await refused(gateway)
    await ask(gateway)
    assert KEY not in caplog.text
    assert all(KEY not in str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("entry", [{"hedge_after_s": 0.1}])
async def test_a_second_request_is_sent_beside_a_slow_one_where_the_operator_wants_it(
    gateway: Gateway, acme: ProviderDouble, entry: dict[str, Any], stream: bool
) -> None:
    acme.stall_first = True
    answer = await ask(gateway, stream=stream)
    assert answer.status_code == 200
    if stream:
        await collect(answer.parse(), [])
    assert len(acme.requests) == 2
    await until(lambda: acme.left == 1, "the slow one to be given up")
    (row,) = await gateway.usage(1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (2000, 500)  # both had the prompt


async def test_by_default_a_slow_request_is_waited_for(gateway: Gateway, acme: ProviderDouble) -> None:
    acme.stall_first = True
    asking = asyncio.create_task(ask(gateway))
    await until(lambda: bool(acme.requests))
    await asyncio.sleep(0.3)
    acme.released.set()
    assert (await asking).status_code == 200
    assert len(acme.requests) == 1
