"""Every route and every status: one envelope, with the request's id; and the OpenAPI document."""

from typing import Any

import aiohttp
import openai
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

from model_gateway.domain import openapi
from model_gateway.domain.dialects.table import DIALECTS

ASK: Any = [{"role": "user", "content": "why?"}]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/embeddings", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nowhere", 404, "model_not_found"),
        ("GET", "/", 404, "unknown_url"),
    ],
)
async def test_unknown_routes_and_methods_are_enveloped(
    speaking: Gateway, method: str, path: str, status: int, code: str
) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        session.request(method, speaking.url + path) as reply,
    ):
        said = await reply.json()
        assert reply.status == status
        assert said["error"].keys() == {"message", "type", "param", "code"}
        assert said["error"]["code"] == code
        assert said["request_id"] == reply.headers["x-request-id"]
        assert ("allow" in reply.headers) == (status == 405)


async def test_below_messages_the_envelope_is_anthropics(speaking: Gateway) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{speaking.url}/v1/messages/batches") as reply,
    ):
        said = await reply.json()
        assert (reply.status, said["type"], said["error"]["type"]) == (404, "error", "not_found_error")
        assert reply.headers["request-id"] == said["request_id"]


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "replaced by tools"),
        ({"function_call": "auto"}, "function_call", "replaced by tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities", "answers are text"),
        ({"audio": {"voice": "x"}}, "audio", "answers are text"),
        ({"web_search_options": {}}, "web_search_options", "nothing is searched"),
        ({"store": True}, "store", "nothing is stored"),
        ({"verbosity": "low"}, "verbosity", "no engine has it"),
        ({"service_tier": "flex"}, "service_tier", "one tier"),
        ({"prediction": {"type": "content"}}, "prediction", "predicted"),
        ({"moderation": {}}, "moderation", "nothing is moderated"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "no content"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "use one of"),
        ({"messages": ["x"]}, "messages[0]", "expected an object"),
        ({"messages": [{**ASK[0], "contnt": "x"}]}, "messages[0].contnt", "did you mean 'content'"),
        ({"messages": [{**ASK[0], "template": None}]}, "messages[0].template", "unknown field"),
        ({"messages": [{**ASK[0], "name": 3}]}, "messages[0].name", "expected a string"),
        ({"messages": [{**ASK[0], "audio": {"id": "a"}}]}, "messages[0].audio", "answers are text"),
        ({"temperature": "hot"}, "temperature", "expected a number"),
        ({"temperature": -1}, "temperature", "non-negative"),
        ({"response_format": {"type": "xml"}}, "response_format", "use text, json_object or json_schema"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "reasoning_effort"),
    ],
)
async def test_no_field_of_a_chat_is_silently_ignored(
    speaking: Gateway, body: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await speaking.client().chat.completions.create(model=MODEL, messages=ASK, extra_body=body)
    assert refused.value.param == param
    assert why in refused.value.message
    assert isinstance(refused.value.code, str)


async def test_values_that_ask_for_nothing_pass(speaking: Gateway) -> None:
    reply = await speaking.client().chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=2,
        store=False,
        modalities=["text"],
        service_tier="auto",
        verbosity="medium",
        function_call="none",
        parallel_tool_calls=True,
        metadata={"a": "b"},
        user="me",
        safety_identifier="s",
        prompt_cache_key="k",
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 2


async def test_an_answer_can_be_sent_back_as_its_client_has_it(speaking: Gateway) -> None:
    client = speaking.client()
    reply = await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2)
    back: Any = [*ASK, {**reply.choices[0].message.model_dump(), "parsed": None}, *ASK]
    assert (await client.chat.completions.create(model=MODEL, messages=back, max_tokens=2)).choices


async def test_strangers_learn_that_the_port_answers_and_no_more(speaking: Gateway) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{speaking.url}/health") as reply:
        assert (reply.status, await reply.json()) == (200, {"status": "ok"})


async def test_the_document_has_every_route_and_its_schemas_are_the_checks(speaking: Gateway) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{speaking.url}/openapi.json") as reply:
        said = await reply.json()
    assert said["openapi"] == "3.1.0"
    served = {dialect.path for dialect in DIALECTS} | {route.path for route in openapi.READ_ROUTES}
    served.add(openapi.REWARD_PATH)
    assert said["paths"].keys() == served
    chat = said["paths"]["/v1/chat/completions"]["post"]
    schema = chat["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator.check_schema(schema)
    checked = Draft202012Validator(schema)
    body = {"model": MODEL, "messages": ASK}
    assert checked.is_valid(body | {"store": False, "temperature": 0.5, "stop": ["a"]})
    wrongs: list[dict[str, Any]] = [
        {"store": True},
        {"temprature": 1},
        {"temperature": "hot"},
        {"functions": [{}]},
    ]
    for wrong in wrongs:
        assert not checked.is_valid(body | wrong)
    error = chat["responses"]["default"]["content"]["application/json"]["schema"]
    assert error["properties"]["error"]["properties"].keys() == {"message", "type", "param", "code"}
    assert "context_length_exceeded" in said["components"]["schemas"]["ErrorCode"]["enum"]
