"""The pure halves: a call to a provider's request, its answer to a chat reply, whole and in pieces."""

import time
from typing import Any

import orjson
import pytest

from model_gateway.domain.calls import ApiRoute, CallLimits, CompletionCall, read_call
from model_gateway.domain.errors import BadRequest
from model_gateway.domain.upstream import openai
from model_gateway.domain.upstream.anthropic import reply as anthropic_reply
from model_gateway.domain.upstream.anthropic import request as anthropic
from model_gateway.domain.upstream.errors import UpstreamFailed, UpstreamRefusesUs
from model_gateway.domain.upstream.providers import Provider, UpstreamDialect, UpstreamModel
from model_gateway.domain.upstream.refusals import refusal_of
from model_gateway.domain.upstream.sse import EventTooLarge, ServerEvent, SseReader

KEY = "sk-a-secret-of-the-operator"
USER: dict[str, Any] = {"role": "user", "content": "why?"}


def model(dialect: UpstreamDialect, *extra: str) -> UpstreamModel:
    provider = Provider("acme", "http://acme", dialect, KEY, extra_fields=frozenset(extra))
    return UpstreamModel("acme/large", provider, "large-2026")


OPENAI = model(UpstreamDialect.OPENAI)
ANTHROPIC = model(UpstreamDialect.ANTHROPIC)


def call(route: ApiRoute = ApiRoute.CHAT, **body: Any) -> CompletionCall:
    whole = {"model": "acme/large", "messages": [USER], **body}
    if route is not ApiRoute.CHAT:
        del whole["messages"]
    return read_call(route, orjson.dumps(whole), whole, CallLimits(8, 4096))


def test_openais_body_is_passed_with_the_providers_name_and_usage_asked_for() -> None:
    asked = openai.request(call(temperature=0.5, stream=True, metadata={"a": "b"}, user="me"), OPENAI)
    assert asked.path == "/chat/completions"
    assert asked.body == {
        "model": "large-2026",
        "messages": [USER],
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "me",
    }


def test_a_completion_keeps_its_route() -> None:
    asked = openai.request(call(ApiRoute.COMPLETIONS, prompt="once", max_tokens=3), OPENAI)
    assert (asked.path, asked.body) == (
        "/completions",
        {"model": "large-2026", "prompt": "once", "max_tokens": 3},
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"return_token_ids": True}, "return_token_ids"),
        ({"top_k": 4}, "top_k"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"checkpoint": "ckpt-acme-v00000001"}, "model"),
        ({"model": "acme/large@v3"}, "model"),
    ],
)
def test_what_a_provider_cannot_honour_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    if "checkpoint" in body:
        body = {"checkpoint": "ckpt-acme.large-v00000001"}
        asked = call()
        asked = CompletionCall(**{**_fields(asked), "body": {**asked.body, **body}})
    else:
        asked = call(**body)
    for wanted, request in ((OPENAI, openai.request), (ANTHROPIC, anthropic.request)):
        if param == "top_k" and wanted is ANTHROPIC:
            continue  # which it has
        with pytest.raises(BadRequest) as refused:
            request(asked, wanted)
        assert refused.value.param == param
        assert "acme/large" in refused.value.message


def _fields(one: CompletionCall) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_fields_that_the_operator_names_are_passed_to_a_compatible_server() -> None:
    wanted = model(UpstreamDialect.OPENAI, "top_k")
    assert openai.request(call(top_k=4), wanted).body["top_k"] == 4


def test_a_whole_conversation_becomes_anthropics() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, image]},
        {"role": "assistant", "content": "I look", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        {"role": "user", "content": "and?"},
    ]
    asked = anthropic.request(call(messages=messages, max_completion_tokens=7), ANTHROPIC)
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    seen = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    looks = [
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
    ]
    answered = [
        {"type": "tool_result", "tool_use_id": "c1", "content": "a cat"},
        {"type": "text", "text": "and?"},
    ]
    assert asked.path == "/messages"
    assert asked.body == {
        "model": "large-2026",
        "max_tokens": 7,
        "system": "be brief",
        "messages": [
            {"role": "user", "content": seen},
            {"role": "assistant", "content": looks},
            {"role": "user", "content": answered},
        ],
    }


def test_tools_and_settings_become_anthropics() -> None:
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    schema = {"type": "object"}
    asked = anthropic.request(
        call(
            tools=[{"type": "function", "function": tool}],
            tool_choice={"type": "function", "function": {"name": "look"}},
            parallel_tool_calls=False,
            stop="END",
            max_completion_tokens=7,
            top_k=3,
            reasoning_effort="low",
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            user="me",
            n=1,
            seed=None,
        ),
        ANTHROPIC,
    )
    assert asked.body == {
        "model": "large-2026",
        "max_tokens": 7,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}],
        "top_k": 3,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "me"},
        "tools": [
            {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
        ],
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 3}, "seed"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"messages": [USER, {"role": "system", "content": "x"}]}, "messages[1].role"),
        (
            {"messages": [USER, {"role": "assistant", "content": "x", "reasoning": "hm"}]},
            "messages[1].reasoning",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_what_anthropics_messages_cannot_say_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        anthropic.request(call(**body), ANTHROPIC)
    assert refused.value.param == param


def test_anthropic_has_no_completions() -> None:
    with pytest.raises(BadRequest, match="/v1/completions"):
        anthropic.request(call(ApiRoute.COMPLETIONS, prompt="x"), ANTHROPIC)


def test_a_message_becomes_a_chat_reply() -> None:
    said = {
        "id": "msg_1",
        "model": "large-2026",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "it is"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 4},
    }
    reply = anthropic_reply.reply(said, ANTHROPIC)
    (choice,) = reply["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "it is",
        "reasoning": "hm",
        "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (15, 4)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_each_reason_to_stop_has_a_name_in_chat(said: str, expected: str) -> None:
    reply = anthropic_reply.reply({"content": [], "stop_reason": said}, ANTHROPIC)
    assert reply["choices"][0]["finish_reason"] == expected


def test_a_reason_that_is_none_is_no_answer() -> None:
    with pytest.raises(ValueError, match="a stop_reason that is none"):
        anthropic_reply.reply({"content": [], "stop_reason": "bored"}, ANTHROPIC)


def event(**data: Any) -> ServerEvent:
    return ServerEvent(str(data["type"]), orjson.dumps(data))


def test_anthropics_events_become_chunks_and_the_usage_comes_last() -> None:
    stream = anthropic_reply.AnthropicStream(ANTHROPIC, 1)
    events = [
        event(type="message_start", message={"id": "m", "model": "l", "usage": {"input_tokens": 9}}),
        event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        event(type="ping"),
        event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
        event(type="content_block_stop", index=0),
        event(
            type="content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "f"}
        ),
        event(type="content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"}),
        event(type="message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 6}),
    ]
    chunks = [chunk for one in events for chunk in stream.feed(one)]
    assert not stream.is_done
    chunks += stream.feed(event(type="message_stop"))
    assert stream.is_done
    assert stream.is_closed
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "hi"},
        {
            "tool_calls": [
                {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
        {},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert (chunks[-1]["usage"]["prompt_tokens"], chunks[-1]["usage"]["completion_tokens"]) == (9, 6)


@pytest.mark.parametrize("wanted", [OPENAI, ANTHROPIC])
def test_an_error_in_a_stream_names_the_provider_and_hides_its_key(wanted: UpstreamModel) -> None:
    stream: Any = (
        openai.OpenAiStream(wanted, 1) if wanted is OPENAI else anthropic_reply.AnthropicStream(wanted, 1)
    )
    with pytest.raises(UpstreamFailed) as failed:
        stream.feed(event(type="error", error={"type": "overloaded_error", "message": f"no {KEY}"}))
    assert failed.value.message == "provider 'acme' broke its answer off: no [key]"


WRITTEN = b': hello\r\n\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\ndata: two\n\ndata:three\r\r'


@pytest.mark.parametrize("size", range(1, 12))
def test_events_are_whole_however_they_are_cut(size: int) -> None:
    reader = SseReader()
    pieces = [WRITTEN[at : at + size] for at in range(0, len(WRITTEN), size)]
    found = [one for piece in [*pieces, b"\n"] for one in reader.feed(piece)]
    assert found == [ServerEvent("a", b'{"x":\n1}'), ServerEvent("", b"two"), ServerEvent("", b"three")]


def test_a_long_event_in_many_pieces_is_read_in_a_time_that_grows_with_its_length() -> None:
    """Put together anew for each piece, it took more than a minute in which no request was answered."""
    began, reader = time.process_time(), SseReader()
    for _ in range(1 << 14):
        assert list(reader.feed(b"x" * 512)) == []
    assert list(reader.feed(b"\r\ndata: 1\r\n\r\n")) == [ServerEvent("", b"1")]
    assert time.process_time() - began < 5


def test_an_event_without_end_is_given_up() -> None:
    reader = SseReader()
    line = b"data: " + b"x" * (1 << 20) + b"\n"
    with pytest.raises(EventTooLarge):
        [list(reader.feed(line)) for _ in range(20)]


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_what_concerns_our_account_says_nothing_of_what_the_provider_wrote(status: int) -> None:
    error = refusal_of(OPENAI.provider, status, {"error": {"message": f"key {KEY[:12]}*** is bad"}}, {})
    assert isinstance(error, UpstreamRefusesUs)
    assert (error.status, KEY[:12] in error.message) == (502, False)


def test_a_refused_field_has_the_clients_name() -> None:
    said = {"error": {"message": "too large", "param": "max_tokens"}}
    error = refusal_of(OPENAI.provider, 400, said, {"max_tokens": "max_output_tokens"})
    assert (error.status, error.param, "acme" in error.message) == (400, "max_output_tokens", True)
