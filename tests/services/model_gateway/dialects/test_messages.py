"""The `anthropic` client against a real gateway and a real engine."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

ASK: Any = [{"role": "user", "content": "Why is checkout down?"}]
SEARCH: Any = {
    "name": "search",
    "description": "Search the logs.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


def client_of(gateway: Gateway, **settings: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        **{"base_url": gateway.url, "api_key": KEY, "max_retries": 0, "timeout": 60, **settings}
    )


@pytest.fixture
async def speaker(speaking: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(speaking) as client:
        yield client


@pytest.fixture
async def caller(calling: Gateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client_of(calling) as client:
        yield client


async def test_a_message_is_what_the_chat_route_says(
    speaking: Gateway, speaker: anthropic.AsyncAnthropic
) -> None:
    raw = await speaker.messages.with_raw_response.create(
        model=MODEL, system="Be brief.", messages=ASK, max_tokens=12, extra_body={"temperature": 0}
    )
    message = await raw.parse()
    chat = await speaking.client().chat.completions.create(
        model=MODEL, messages=[{"role": "system", "content": "Be brief."}, *ASK], max_tokens=12, temperature=0
    )
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].to_dict()["text"] == chat.choices[0].message.content
    assert (message.stop_reason, message.role, message.model) == ("max_tokens", "assistant", MODEL)
    assert chat.usage is not None
    cached = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + cached == chat.usage.prompt_tokens
    assert message.usage.output_tokens == 12
    assert raw.headers["x-upcycle-version"] == "0"
    assert message.id == f"msg_{raw.headers['request-id']}"


async def test_a_stream_adds_up_to_the_message(speaker: anthropic.AsyncAnthropic) -> None:
    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 12, "extra_body": {"temperature": 0}}
    async with speaker.messages.stream(**asked) as stream:
        words = [text async for text in stream.text_stream]
        streamed = await stream.get_final_message()
    whole = await speaker.messages.create(**asked)
    assert len(words) > 1
    assert "".join(words) == whole.content[0].to_dict()["text"]
    assert streamed.content[0].to_dict()["text"] == "".join(words)
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    assert streamed.usage.output_tokens == 12
    said = [one.input_tokens + (one.cache_read_input_tokens or 0) for one in (streamed.usage, whole.usage)]
    assert said[0] == said[1] > 0


async def test_a_tool_is_called_and_its_result_goes_back(
    calling: Gateway, caller: anthropic.AsyncAnthropic
) -> None:
    first = await caller.messages.create(model=MODEL, messages=ASK, max_tokens=60, tools=[SEARCH])
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("search", {"query": "disk"})
    said: Any = [block.to_dict() for block in first.content]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "no index", "is_error": True}
    second = await caller.messages.create(
        model=MODEL,
        messages=[*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}],
        max_tokens=60,
        tools=[SEARCH],
    )
    cached = second.usage.cache_read_input_tokens or 0
    assert second.usage.input_tokens + cached == await chat_prompt_tokens(calling, call.id)


async def chat_prompt_tokens(calling: Gateway, call_id: str) -> int:
    """Of the same conversation on the chat route."""
    function = {"name": "search", "arguments": '{"query":"disk"}'}
    called: Any = [{"id": call_id, "type": "function", "function": function}]
    search: Any = {
        "name": "search",
        "description": SEARCH["description"],
        "parameters": SEARCH["input_schema"],
    }
    chat = await calling.client().chat.completions.create(
        model=MODEL,
        messages=[
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": called},
            {"role": "tool", "tool_call_id": call_id, "content": "Error: no index"},
        ],
        tools=[{"type": "function", "function": search}],
        max_tokens=60,
    )
    assert chat.usage is not None
    return chat.usage.prompt_tokens


async def test_a_streamed_tool_call_is_whole(caller: anthropic.AsyncAnthropic) -> None:
    async with caller.messages.stream(model=MODEL, messages=ASK, max_tokens=60, tools=[SEARCH]) as stream:
        kinds = [event.type async for event in stream]
        message = await stream.get_final_message()
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input, message.stop_reason) == ("search", {"query": "disk"}, "tool_use")
    assert kinds[-1] == "message_stop"


async def test_the_stop_string_is_named(speaking: Gateway, speaker: anthropic.AsyncAnthropic) -> None:
    whole = await speaker.messages.create(
        model=MODEL, messages=ASK, max_tokens=12, extra_body={"temperature": 0}
    )
    text = str(whole.content[0].to_dict()["text"])
    stop = text[len(text) // 2 :][:2]
    asked: Any = {"model": MODEL, "messages": ASK, "max_tokens": 12, "stop_sequences": [stop]}
    stopped = await speaker.messages.create(**asked, extra_body={"temperature": 0})
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    async with speaker.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        streamed = await stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"max_tokens": None}, "max_tokens", "max_tokens is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type", "budget"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "calls no tools"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "no built-in tools"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema", "expected an object"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type", "use auto, any, none or tool"),
        ({"messages": [*ASK, {"role": "assistant", "content": "It"}]}, "messages", "no engine goes on"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0]",
            "text",
        ),
        ({"container": "c"}, "container", "runs no code"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type", "use json_schema"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    speaker: anthropic.AsyncAnthropic, body: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        await speaker.messages.create(model=MODEL, messages=ASK, max_tokens=4, extra_body=body)
    said: Any = refused.value.body
    assert said["type"] == "error"
    assert said["error"]["type"] == "invalid_request_error"
    assert why in said["error"]["message"]
    assert said["error"]["param"].startswith(param)
    assert said["request_id"] == refused.value.request_id


async def test_errors_have_anthropics_types(speaking: Gateway, speaker: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await speaker.messages.create(model="nowhere", messages=ASK, max_tokens=4)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    async with client_of(speaking, api_key="up_bootstrapkey1_wrongwrongwrongwrongwrong") as stranger:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await stranger.messages.create(model=MODEL, messages=ASK, max_tokens=4)
    assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        await speaker.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "why " * 600}], max_tokens=4
        )


async def test_the_key_may_come_as_x_api_key(speaking: Gateway) -> None:
    body = {"model": MODEL, "messages": ASK, "max_tokens": 4}
    async with aiohttp.ClientSession() as session:
        for headers, status in (({"x-api-key": KEY}, 200), ({"x-api-key": "up_x"}, 401), ({}, 401)):
            async with session.post(f"{speaking.url}/v1/messages", json=body, headers=headers) as reply:
                assert reply.status == status
                said = await reply.json()
                assert said["type"] == ("message" if status == 200 else "error")
