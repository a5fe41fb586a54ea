"""Models of providers behind the gateway's own routes: every dialect, whole and streamed, counted and
priced."""

from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from tests.services.model_gateway.conftest import KEY as OWN_KEY
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.upstream.provider_double import ANSWER, COST, KEY, WORDS, ProviderDouble
from tests.support.command_line import NO_PEERS, run_upcycle, without_settings
from tests.support.waiting import until

ASK: Any = [{"role": "user", "content": "why?"}]
BOTH = pytest.mark.parametrize("model", ["acme/large", "claudia/large"])
TASKS = """
from upcycle import Environment

env = Environment("pool")


@env.scenario("ask")
def ask(word: str):
    answer = yield "What was it?"
    yield float(word in answer)


tasks = [ask.task(slug="a", word="pool"), ask.task(slug="b", word="disk")]
"""


async def get(gateway: Gateway, path: str, key: str = OWN_KEY) -> Any:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.get(gateway.url + path) as reply,
    ):
        return await reply.json()


@BOTH
async def test_a_chat_is_answered_counted_and_priced(
    gateway: Gateway, acme: ProviderDouble, model: str
) -> None:
    raw = await gateway.client().chat.completions.with_raw_response.create(
        model=model, messages=ASK, max_tokens=9
    )
    reply = raw.parse()
    assert reply.choices[0].message.content == ANSWER
    assert reply.choices[0].finish_reason == "stop"
    name = model.partition("/")[0]
    assert (raw.headers["x-upcycle-model"], raw.headers["x-upcycle-provider"]) == (model, name)
    assert "x-upcycle-version" not in raw.headers
    (asked,) = acme.requests
    assert (asked["model"], asked["max_tokens"]) == (f"{name}-large-2026", 9)
    (row,) = await gateway.usage(1)
    assert (row["model"], row["version"], row["prompt_tokens"]) == (model, None, 1000)
    assert row["cost"] == pytest.approx(COST)


@BOTH
async def test_a_stream_is_the_same_answer_with_its_usage(
    gateway: Gateway, acme: ProviderDouble, model: str
) -> None:
    stream = await gateway.client().chat.completions.create(
        model=model, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.split() == list(WORDS)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 500
    (row,) = await gateway.usage(1)
    assert row["cost"] == pytest.approx(COST)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_responses_and_messages_are_translated(
    gateway: Gateway, acme: ProviderDouble, model: str, stream: bool
) -> None:
    client = gateway.client()
    claude = anthropic.AsyncAnthropic(base_url=gateway.url, api_key=OWN_KEY, max_retries=0)
    if stream:
        events = await client.responses.create(model=model, input="why?", stream=True)
        done = [event async for event in events][-1]
        assert done.type == "response.completed"
        response = done.response
        async with claude.messages.stream(model=model, max_tokens=8, messages=ASK) as blocks:
            message: Any = await blocks.get_final_message()
    else:
        response = await client.responses.create(model=model, input="why?")
        message = await claude.messages.create(model=model, max_tokens=8, messages=ASK)
    await claude.close()
    assert response.output_text.split() == list(WORDS)
    assert response.usage is not None
    assert response.usage.output_tokens == 500
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock)
    assert block.text.split() == list(WORDS)
    assert (message.stop_reason, message.usage.input_tokens) == ("end_turn", 1000)


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_go_to_a_provider_that_has_them(
    gateway: Gateway, acme: ProviderDouble, stream: bool
) -> None:
    client = gateway.client()
    if stream:
        parts = await client.completions.create(model="acme/large", prompt="why?", stream=True)
        assert "".join([part.choices[0].text async for part in parts]).split() == list(WORDS)
    else:
        reply = await client.completions.create(model="acme/large", prompt="why?")
        assert reply.choices[0].text == ANSWER
    with pytest.raises(openai.BadRequestError, match="has no /v1/completions"):
        await client.completions.create(model="claudia/large", prompt="why?")
    assert acme.paths == ["/v1/completions"]


async def test_the_provider_gets_its_own_key_and_nothing_of_the_clients_headers(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    headers = {"X-Session-ID": "s-1", "Cookie": "a=b", "X-Forwarded-For": "10.0.0.1"}
    for model in ("acme/large", "claudia/large"):
        client = gateway.client(default_headers={**headers, "X-Session-ID": model.replace("/", "-")})
        await client.chat.completions.create(model=model, messages=ASK)
    ours, theirs = acme.seen_headers
    assert ours["Authorization"] == f"Bearer {KEY}"
    assert theirs["x-api-key"] == KEY
    for seen in acme.seen_headers:
        names = {name.lower() for name in seen}
        assert not names & {"x-session-id", "cookie", "x-forwarded-for", "traceparent"}
        assert OWN_KEY not in str(seen)


async def test_models_of_providers_are_listed_beside_registered_ones(gateway: Gateway) -> None:
    gateway.registry.head("incident", 0)
    gateway.registry.head("acme/hidden", 0)
    client = gateway.client()

    async def listed() -> list[str]:
        return [card.id for card in (await client.models.list()).data]

    await until(lambda: gateway.registry.asked >= 4)
    assert await listed() == ["incident", "acme/large", "claudia/large"]
    assert (await client.models.retrieve("acme/large")).owned_by == "acme"
    with pytest.raises(openai.NotFoundError, match="provider 'acme' serves acme/large"):
        await client.chat.completions.create(model="acme/hidden", messages=ASK)
    serving = await get(gateway, "/upcycle/v1/serving")
    assert serving["providers"] == [
        {"provider": "acme", "models": ["acme/large"], "circuit": "closed"},
        {"provider": "claudia", "models": ["claudia/large"], "circuit": "closed"},
    ]


@pytest.mark.parametrize(
    ("body", "param"), [({"return_token_ids": True}, "return_token_ids"), ({"top_k": 3}, "top_k")]
)
async def test_what_cannot_be_honoured_is_refused_before_the_provider_is_asked(
    gateway: Gateway, acme: ProviderDouble, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.client().chat.completions.create(model="acme/large", messages=ASK, extra_body=body)
    assert refused.value.param == param
    with pytest.raises(openai.BadRequestError, match="no versions"):
        await gateway.client(default_headers={"X-Upcycle-Version": "3"}).chat.completions.create(
            model="acme/large", messages=ASK
        )
    assert acme.requests == []


async def test_a_key_reads_its_own_usage_with_prices_also_after_a_restart(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    for model in ("acme/large", "acme/large", "claudia/large"):
        await gateway.client().chat.completions.create(model=model, messages=ASK)
    await gateway.usage(3)
    said = await get(gateway, "/upcycle/v1/usage?days=2")
    rows = [(row["model"], row["requests"], row["completion_tokens"]) for row in said["models"]]
    assert rows == [("acme/large", 2, 1000), ("claudia/large", 1, 500)]
    assert said["cost"] == pytest.approx(3 * COST)
    assert said["cost_today"] == pytest.approx(3 * COST)
    assert said["limits"] == {}
    assert (await get(gateway, "/upcycle/v1/usage?days=0"))["error"]["param"] == "days"
    assert (await get(gateway, "/upcycle/v1/usage", key="up_x"))["error"]["code"] == "invalid_api_key"


async def test_an_answer_without_usage_is_counted_by_its_length(
    gateway: Gateway, acme: ProviderDouble
) -> None:
    acme.usage = None
    client = gateway.client()
    await client.chat.completions.create(model="acme/large", messages=ASK)
    async for _ in await client.chat.completions.create(model="acme/large", messages=ASK, stream=True):
        pass
    for row in await gateway.usage(2):
        assert 3 <= row["completion_tokens"] <= 6
        assert row["prompt_tokens"] > 10
        assert row["cost"] > 0


async def test_an_evaluation_through_the_gateway_plays_a_providers_model(
    gateway: Gateway, acme: ProviderDouble, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    own = {"UPCYCLE_PEERS_GATEWAY": gateway.url.removeprefix("http://"), "UPCYCLE_API_KEY": OWN_KEY}
    env = {**without_settings(), **NO_PEERS, **own}
    asked = ("eval", "tasks.py", "claudia/large", "--gateway")
    status, printed, said = await run_upcycle(*asked, env=env, cwd=tmp_path)
    assert status == 0, said
    assert "50" in printed
    assert len(acme.requests) == 2
    assert {row["model"] for row in await gateway.usage(2)} == {"claudia/large"}
