"""Tokens of a prompt before it is sent, as the `anthropic` and `openai` clients ask for them."""

from typing import Any

import anthropic
import openai
import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.dialects.conftest import MODEL
from tests.services.model_gateway.dialects.test_messages import ASK, SEARCH, client_of

TOOL: Any = {"type": "function", "name": "search", "parameters": SEARCH["input_schema"]}


async def test_anthropics_count_is_what_the_message_is_billed(speaking: Gateway) -> None:
    asked: Any = {"model": MODEL, "system": "Be brief.", "messages": ASK}
    async with client_of(speaking) as client:
        counted = await client.messages.count_tokens(**asked)
        message = await client.messages.create(**asked, max_tokens=1)
        with_tool = await client.messages.count_tokens(**asked, tools=[SEARCH])
    cached = message.usage.cache_read_input_tokens or 0  # what an earlier test's prompt began with
    assert counted.input_tokens == message.usage.input_tokens + cached > 0
    assert with_tool.input_tokens > counted.input_tokens


async def test_openais_count_is_what_the_response_is_billed(speaking: Gateway) -> None:
    asked: Any = {"model": MODEL, "instructions": "Be brief.", "input": "Why is checkout down?"}
    client = speaking.client()
    counted = await client.responses.input_tokens.count(**asked)
    response = await client.responses.create(**asked, max_output_tokens=1)
    with_tool = await client.responses.input_tokens.count(**asked, tools=[TOOL])
    assert response.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == response.usage.input_tokens > 0
    assert with_tool.input_tokens > counted.input_tokens


async def test_what_no_prompt_has_is_refused_in_the_dialects_own_envelope(speaking: Gateway) -> None:
    async with client_of(speaking) as client:
        with pytest.raises(anthropic.BadRequestError, match="unknown field 'max_tokens'"):
            await client.messages.count_tokens(model=MODEL, messages=ASK, extra_body={"max_tokens": 4})
    with pytest.raises(openai.BadRequestError) as refused:
        await speaking.client().responses.input_tokens.count(model=MODEL, previous_response_id="resp_1")
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "previous_response_id")
