"""A recorded session may be asked in any dialect: the trajectory is the same."""

from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL, RealEngine
from tests.services.model_gateway.test_recorded_sessions import fresh, recorded
from tests.support.waiting import until

from service_kit.groups import S3Settings

ASK = "Why is checkout down?"


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"session_idle_s": 1.0}


def has_looked_again(gateway: Gateway, before: int) -> bool:
    """The gateway has asked the registry for leases since."""
    return gateway.registry.asked > before + 4


async def by_chat(base: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0) as client:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": ASK}], max_tokens=60, temperature=1
        )


async def by_responses(base: str) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key=KEY, max_retries=0) as client,
        client.responses.stream(model=MODEL, input=ASK, max_output_tokens=60, temperature=1) as stream,
    ):
        await stream.get_final_response()


async def by_messages(base: str) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=base, api_key=KEY, max_retries=0) as client,
        client.messages.stream(
            model=MODEL,
            messages=[{"role": "user", "content": ASK}],
            max_tokens=60,
            extra_body={"temperature": 1},
        ) as stream,
    ):
        await stream.get_final_message()


async def test_the_trajectory_is_the_same_in_every_dialect(calling: Gateway, s3_settings: S3Settings) -> None:
    bodies = []
    for ask in (by_chat, by_responses, by_messages):
        session_id = fresh(ask.__name__)
        await ask(f"{calling.url}/s/{session_id}")
        bodies.append(await recorded(calling, s3_settings, session_id))
    turns = [body.turns[0] for body in bodies]
    assert len(turns[0].sampled_ids) > 0
    for turn in turns:
        assert list(turn.new_prompt_ids) == list(turns[0].new_prompt_ids)
        assert list(turn.sampled_ids) == list(turns[0].sampled_ids)
        assert len(turn.sampled_logprobs) == len(turn.sampled_ids)
    assert [[message.content for message in body.prompt] for body in bodies] == [[ASK]] * 3


async def test_an_error_of_a_session_has_the_dialects_envelope(calling: Gateway) -> None:
    async with anthropic.AsyncAnthropic(base_url=f"{calling.url}/s/-", api_key=KEY, max_retries=0) as client:
        with pytest.raises(anthropic.BadRequestError) as refused:
            await client.messages.create(
                model=MODEL, messages=[{"role": "user", "content": ASK}], max_tokens=4
            )
    assert refused.value.body["type"] == "error"  # type: ignore[index]


async def lease_as(gateway: Gateway, engine: RealEngine, kind: str) -> None:
    """Returns when the gateway knows the lease."""
    gateway.registry.lease(engine, engine_kind=kind)
    looked = gateway.registry.asked
    await until(lambda: gateway.registry.asked > looked + 4, "the gateway to know the lease")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("chat", [False, True])
async def test_columns_hold_what_entries_hold(
    gateway: Gateway, speaking_engine: RealEngine, s3_settings: S3Settings, chat: bool, streamed: bool
) -> None:
    """A real engine answers the same request twice, its log-probabilities in either form."""
    gateway.registry.head(MODEL, 0)
    turns = []
    for kind in ("embedded", "another"):
        gateway.registry.lease(speaking_engine, engine_kind=kind)
        looked = gateway.registry.asked
        await until(partial(has_looked_again, gateway, looked), "the gateway to know the lease")
        session_id = fresh(kind)
        client = gateway.client(default_headers={"X-Session-ID": session_id})
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 40, "seed": 5, "temperature": 1}
        if chat:
            messages: Any = [{"role": "user", "content": ASK}]
            said: Any = await client.chat.completions.create(messages=messages, stream=streamed, **asked)
        else:
            said = await client.completions.create(prompt=ASK, stream=streamed, **asked)
        if streamed:
            [chunk async for chunk in said]
        (turn,) = (await recorded(gateway, s3_settings, session_id)).turns
        turns.append(turn)
    columns, entries = turns
    assert columns.sampled_ids
    assert len(columns.sampled_ids) == len(columns.sampled_logprobs) == len(columns.sampled_texts)
    assert columns.sampled_ids == entries.sampled_ids
    assert columns.sampled_texts == entries.sampled_texts
    # The second time the prompt's keys and values are there already, which rounds otherwise.
    assert list(columns.sampled_logprobs) == pytest.approx(list(entries.sampled_logprobs), abs=1e-4)
    assert columns.versions == entries.versions
