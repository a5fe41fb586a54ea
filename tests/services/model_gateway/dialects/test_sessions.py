"""A recorded session may be asked in any dialect: the trajectory is the same."""

from typing import Any

import anthropic
import openai
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL
from tests.services.model_gateway.test_recorded_sessions import fresh, recorded

from service_kit.groups import S3Settings

ASK = "Why is checkout down?"


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"session_idle_s": 1.0}


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
