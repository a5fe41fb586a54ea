"""The `openai` client's Responses against a real gateway and a real engine."""

from typing import Any

import openai
import pytest
from openai.types.responses import Response
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

ASK = "Why is checkout down?"
SEARCH: dict[str, Any] = {
    "type": "function",
    "name": "search",
    "description": "Search the logs.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    "strict": True,
}


async def test_a_response_is_what_the_chat_route_says(speaking: Gateway) -> None:
    client = speaking.client()
    raw = await client.responses.with_raw_response.create(
        model=MODEL,
        instructions="Be brief.",
        input=ASK,
        max_output_tokens=12,
        temperature=0,
        metadata={"team": "sre"},
    )
    response = raw.parse()
    chat = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}],
        max_tokens=12,
        temperature=0,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.output_text
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens == 12
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert (response.model, response.instructions, response.metadata) == (MODEL, "Be brief.", {"team": "sre"})
    assert response.to_dict()["store"] is False
    assert raw.headers["x-upcycle-version"] == "0"
    assert response.id == f"resp_{raw.headers['x-request-id']}"
    row = (await speaking.usage(2))[0]
    assert (row["path"], row["completion_tokens"]) == ("/v1/responses", 12)


async def test_a_stream_ends_in_the_response_that_its_events_report(speaking: Gateway) -> None:
    async with speaking.client().responses.stream(
        model=MODEL, input=ASK, max_output_tokens=12, temperature=0
    ) as stream:
        events = [event async for event in stream]
    whole = await speaking.client().responses.create(
        model=MODEL, input=ASK, max_output_tokens=12, temperature=0
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    streamed, at_once = last.response.usage, whole.usage
    assert streamed is not None
    assert at_once is not None
    kept = {"input_tokens_details"}  # the engine may have kept the prompt from the call before
    assert streamed.model_dump(exclude=kept) == at_once.model_dump(exclude=kept)
    kinds = [event.type for event in events[2:-1] if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


async def asked_with_tool(gateway: Gateway, **body: Any) -> Response:
    tools: Any = [SEARCH]
    answered: Response = await gateway.client().responses.create(
        model=MODEL, input=body.pop("input", ASK), tools=tools, max_output_tokens=60, **body
    )
    return answered


async def test_a_tool_is_called_and_its_result_goes_back(calling: Gateway) -> None:
    first = await asked_with_tool(calling)
    assert first.status == "completed"
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("search", '{"query":"disk"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "disk full"}
    said = [item.to_dict() for item in first.output]
    second = await asked_with_tool(calling, input=[{"role": "user", "content": ASK}, *said, result])
    # The conversation as the chat route has it: one turn with its call, then the result.
    chat = await calling.client().chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": ASK},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": "disk full"},
        ],
        tools=[
            {
                "type": "function",
                "function": {key: value for key, value in SEARCH.items() if key != "type"},  # type: ignore[typeddict-item]
            }
        ],
        max_tokens=60,
    )
    assert second.usage is not None
    assert chat.usage is not None
    assert second.usage.input_tokens == chat.usage.prompt_tokens


async def test_a_streamed_tool_call_is_whole(calling: Gateway) -> None:
    tools: Any = [SEARCH]
    async with calling.client().responses.stream(model=MODEL, input=ASK, tools=tools) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, call.arguments, call.status) == ("search", '{"query":"disk"}', "completed")
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [event.arguments for event in done] == ['{"query":"disk"}']
    assert events[-1].type == "response.completed"


async def test_logprobs_are_given_where_they_were_asked_for(speaking: Gateway) -> None:
    client = speaking.client()
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for body, has in ((wanted, True), ({}, False)):
        response = await client.responses.create(model=MODEL, input=ASK, max_output_tokens=4, extra_body=body)
        (message,) = [item for item in response.output if item.type == "message"]
        part = message.content[0]
        assert part.type == "output_text"
        assert len(part.logprobs or ()) == (4 if has else 0)
        if has:
            assert part.logprobs is not None
            assert len(part.logprobs[0].top_logprobs) == 2


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored"),
        ({"store": True}, "store", "nothing is stored"),
        ({"background": True}, "background", "nothing is stored"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored"),
        ({"prompt": {"id": "p"}}, "prompt", "no prompt templates"),
        ({"truncation": "auto"}, "truncation", "never cut"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type", "nothing is stored"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "expected an array"),
        ({"input": []}, "input", "empty"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
            "use input_text",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "no built-in tools"),
        ({"tools": [{**SEARCH, "defer_loading": True}]}, "tools[0].defer_loading", "not honoured"),
        ({"include": ["file_search_call.results"]}, "include", "use message.output_text.logprobs"),
        ({"top_logprobs": 3}, "top_logprobs", "needs include"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "use text"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "no engine has it"),
        ({"max_output_tokens": 0}, "max_output_tokens", "from 1 to"),
        ({"inptu": "x"}, "inptu", "did you mean 'input'"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options", "as they are"),
        ({"top_p": 7}, "top_p", "(0, 1]"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    speaking: Gateway, body: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await speaking.client().responses.create(model=MODEL, input=ASK, extra_body=body)
    assert (refused.value.param or "").startswith(param)
    assert why in refused.value.message
    assert refused.value.request_id is not None


async def test_a_prompt_beyond_the_context_has_openais_code(speaking: Gateway) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            await speaking.client().responses.create(model=MODEL, input="why " * 600, stream=stream)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
