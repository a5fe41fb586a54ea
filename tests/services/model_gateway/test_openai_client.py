"""The real `openai` client against the gateway: it must not notice that this is not OpenAI."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.services.model_gateway.conftest import KEY, Gateway, digest
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.support.waiting import until

from upcycle.api.common.v1 import common_pb2

ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "why?"}]
ANSWER = "the pool is exhausted"


def nested(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(levels - 1):
        body = {"a": body}
    return body


async def test_a_chat_completion_names_the_weights_that_answered(
    gateway: Gateway, served: EngineDouble, spans: InMemorySpanExporter
) -> None:
    raw = await gateway.client().chat.completions.with_raw_response.create(model="incident", messages=ASK)
    assert raw.parse().choices[0].message.content == ANSWER
    assert raw.headers["x-upcycle-model"] == "incident"
    assert raw.headers["x-upcycle-version"] == "3"
    assert raw.headers["x-upcycle-digest"] == digest(3)
    assert raw.headers["x-request-id"].startswith("req-")
    assert float(raw.headers["x-upcycle-overhead-ms"]) > 0
    assert raw.headers["traceparent"].startswith("00-")
    (row,) = await gateway.usage(1)
    assert (row["prompt_tokens"], row["completion_tokens"], row["version"]) == (3, 4, 3)
    assert (row["key_id"], row["status"]) == ("bootstrapkey1", 200)
    await until(lambda: any(one.name == "chat incident" for one in spans.get_finished_spans()))
    (span,) = [one for one in spans.get_finished_spans() if one.name == "chat incident"]
    attributes = span.attributes or {}
    assert attributes["gen_ai.response.model"] == "ckpt-incident-v00000003"
    assert attributes["gen_ai.usage.output_tokens"] == 4
    # One trace: the engine was called below the span that the client was told about.
    assert raw.headers["traceparent"] == served.headers[0]["traceparent"]
    assert span.context is not None
    assert format(span.context.trace_id, "032x") in raw.headers["traceparent"]


async def test_the_callers_trace_goes_on(
    gateway: Gateway, served: EngineDouble, spans: InMemorySpanExporter
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    raw = await gateway.client().chat.completions.with_raw_response.create(
        model="incident", messages=ASK, extra_headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    )
    assert trace_id in raw.headers["traceparent"]
    assert trace_id in served.headers[0]["traceparent"]


async def test_a_stream_brings_the_answer_and_version_and_its_usage_is_stored_but_not_sent(
    gateway: Gateway, served: EngineDouble
) -> None:
    stream = await gateway.client().chat.completions.create(model="incident", messages=ASK, stream=True)
    assert stream.response.headers["x-upcycle-version"] == "3"
    words = [chunk.choices[0].delta.content async for chunk in stream]
    assert " ".join(word or "" for word in words) == ANSWER
    # Usage was asked for on our account, and its chunk kept from a client that did not ask.
    assert served.requests[0]["stream_options"] == {"include_usage": True}
    (row,) = await gateway.usage(1)
    assert (row["completion_tokens"], row["streamed"]) == (4, 1)
    assert row["first_byte_s"] > 0


async def test_a_stream_sends_usage_to_a_client_that_asks_for_it(
    gateway: Gateway, served: EngineDouble
) -> None:
    stream = await gateway.client().chat.completions.create(
        model="incident", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert chunks[-1].choices == []


async def test_the_blocking_openai_client_gets_whole_and_streamed_answers(
    gateway: Gateway, served: EngineDouble
) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
            whole = client.chat.completions.create(model="incident", messages=ASK)
            parts = client.chat.completions.create(model="incident", messages=ASK, stream=True)
            return whole.choices[0].message.content, " ".join(
                chunk.choices[0].delta.content or "" for chunk in parts
            )

    assert await asyncio.to_thread(ask) == (ANSWER, ANSWER)


async def test_tools_logprobs_and_n_pass_through(gateway: Gateway, served: EngineDouble) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    reply = await gateway.client().chat.completions.create(
        model="incident", messages=ASK, tools=tools, logprobs=True, n=2, stop=["x"], seed=7, max_tokens=9
    )
    assert len(reply.choices) == 2
    assert reply.choices[0].message.tool_calls is not None
    assert reply.choices[0].logprobs is not None
    assert served.requests[0] == {
        "model": "incident",
        "messages": ASK,
        "tools": tools,
        "logprobs": True,
        "n": 2,
        "stop": ["x"],
        "seed": 7,
        "max_tokens": 9,
    }


async def test_token_ids_are_in_both_places(gateway: Gateway, served: EngineDouble) -> None:
    reply = await gateway.client().chat.completions.create(
        model="incident", messages=ASK, logprobs=True, extra_body={"return_token_ids": True}
    )
    body = reply.model_dump()
    assert body["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"][0]["token_ids"] == [11, 12, 13, 14]


async def test_token_ids_of_a_stream(gateway: Gateway, served: EngineDouble) -> None:
    stream = await gateway.client().chat.completions.create(
        model="incident", messages=ASK, stream=True, extra_body={"return_token_ids": True}
    )
    chunks = [chunk.model_dump() async for chunk in stream]
    assert chunks[0]["prompt_token_ids"] == [1, 2, 3]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[11], [12], [13], [14]]


async def test_a_completion_of_plain_text_is_answered(gateway: Gateway, served: EngineDouble) -> None:
    reply = await gateway.client().completions.create(model="incident", prompt="why?")
    assert reply.choices[0].text == ANSWER


async def test_models_say_their_context(gateway: Gateway, served: EngineDouble) -> None:
    client = gateway.client()
    (card,) = (await client.models.list()).data
    assert card.id == "incident"
    assert card.model_dump()["max_model_len"] == 2048
    assert (await client.models.retrieve("incident")).id == "incident"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nowhere")
    with pytest.raises(openai.NotFoundError, match="'Qwen/Qwen3' does not exist"):
        await client.models.retrieve("Qwen/Qwen3")


async def test_the_bare_origin_is_a_base_url_too(gateway: Gateway, served: EngineDouble) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        reply = await client.chat.completions.create(model="incident", messages=ASK)
        assert reply.choices[0].message.content == ANSWER
        assert [card.id for card in (await client.models.list()).data] == ["incident"]


async def test_an_engines_refusal_reaches_the_client(gateway: Gateway, served: EngineDouble) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="temperature must be") as refused:
            await gateway.client().chat.completions.create(
                model="incident", messages=ASK, temperature=-1, stream=stream
            )
        assert refused.value.param == "temperature"


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"max_tokns": 5}, "max_tokns", "did you mean 'max_tokens'"),
        ({"chat_template": "{{x}}"}, "chat_template", "unknown field"),
        ({"n": 1000}, "n", "from 1 to 64"),
        ({"n": True}, "n", "from 1 to 64"),
        ({"max_tokens": 0}, "max_tokens", "from 1 to"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens", "from 1 to"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"model": "incident@latest"}, "model", "names no version of"),
        ({"model": ""}, "model", "must name a model"),
        ({"model": "a\0b"}, "model", "'a\\x00b': it must name a model"),
        ({"model": "a" * 65}, "model", "must name a model"),
        ({"checkpoint": "ckpt-other-v00000001"}, "checkpoint", "is not one of"),
        ({"tools": [nested(200)]}, "tools", "nests deeper than 64 levels"),
    ],
)
async def test_wrong_requests_are_named(
    gateway: Gateway, served: EngineDouble, body: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.client().chat.completions.create(model="incident", messages=ASK, extra_body=body)
    assert refused.value.param == param
    assert why in refused.value.message
    assert served.requests == []


async def test_unknown_models_and_versions_are_not_found(gateway: Gateway, served: EngineDouble) -> None:
    client = gateway.client()
    for model, code in (("nowhere", "model_not_found"), ("incident@v99", "version_not_served")):
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model=model, messages=ASK)
        assert refused.value.code == code
    assert [row["status"] for row in await gateway.usage(2)] == [404, 404]


async def test_a_name_with_a_version_reaches_an_engine_that_holds_it(
    gateway: Gateway, served: EngineDouble
) -> None:
    served.held = frozenset({1})
    gateway.registry.lease(served)
    client = gateway.client()
    for asked, sent, version in (
        ("incident@head", "incident", "3"),
        ("incident@v3", "incident", "3"),
        ("incident@v1", "incident@v1", "1"),
    ):
        if version == "1":
            served.reports_versions = False
        raw = await client.chat.completions.with_raw_response.create(model=asked, messages=ASK)
        assert served.requests[-1]["model"] == sent
        assert raw.headers["x-upcycle-version"] == version
        assert raw.headers["x-upcycle-digest"] == digest(int(version))
    await client.chat.completions.create(
        model="incident", messages=ASK, extra_body={"checkpoint": "ckpt-incident-v00000001"}
    )
    assert served.requests[-1]["model"] == "incident@v1"
    assert "checkpoint" not in served.requests[-1]


async def test_every_parameter_of_the_client_is_known() -> None:
    import typing

    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat

    from model_gateway.domain.engine_fields import CHAT_FIELDS, COMPLETIONS_FIELDS

    assert typing.get_type_hints(chat.CompletionCreateParamsStreaming).keys() <= CHAT_FIELDS.keys()
    assert (
        typing.get_type_hints(completions.CompletionCreateParamsStreaming).keys() <= COMPLETIONS_FIELDS.keys()
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_version_that_an_engine_left_since_its_lease_is_answered_by_another(
    gateway: Gateway, served: EngineDouble, stream: bool
) -> None:
    served.version = 4  # it reloaded; its lease says v3
    async with engine(version=3) as other:

        async def lease() -> None:
            await asyncio.sleep(0.5)
            gateway.registry.lease(served)
            gateway.registry.lease(other, "engine-2", channel=common_pb2.CHANNEL_LATEST)

        leasing = asyncio.create_task(lease())
        raw = await gateway.client().chat.completions.with_raw_response.create(
            model="incident@v3", messages=ASK, stream=stream
        )
        assert raw.headers["x-upcycle-version"] == "3"
        assert (bool(served.requests), len(other.requests)) == (True, 1)
        await leasing
