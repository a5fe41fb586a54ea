"""Every route of the OpenAPI document with bodies at random, over a real engine: the answer is an answer or a
refusal, whatever comes."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.dialects.conftest import MODEL, RealEngine
from tests.services.model_gateway.dialects.test_hostile_bodies import HEADERS, VALID, check_answers

from model_gateway.domain import openapi

ANYTHING: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([-1, 0, 1, 2, 3, 65, 1e308, -1e-308, 0.5])
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", "function", "auto", "json_schema", "required", "stop", MODEL]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "name", "function", "schema", "json_schema", "tool_calls"]
            )
            | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def bodies(schema: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with the required fields, mostly as they should be, and a few others, mostly not."""
    names = sorted(schema["properties"])
    needed = {name: st.just(VALID[name]) if name in VALID else ANYTHING for name in schema["required"]}
    bounded = {name: st.just(VALID[name]) for name in ("max_tokens", "max_output_tokens") if name in names}
    others = st.dictionaries(st.sampled_from(names) | st.text(max_size=6), ANYTHING, max_size=3)
    return st.builds(lambda base, more: {**base, **more}, st.fixed_dictionaries(bounded | needed), others)


def check_route(url: str, method: str, path: str, operation: Mapping[str, Any], examples: int) -> None:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
    schema: dict[str, Any] = {"properties": {}, "required": []}
    if method == "post":
        schema = operation["requestBody"]["content"]["application/json"]["schema"]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies(schema) | ANYTHING if method == "post" else st.none(), st.text(min_size=1, max_size=6))
    def check(body: Any, name: str) -> None:
        raw = None if method == "get" else json.dumps(body).encode()
        filled = path.replace("{session_id}", quote(name, safe="")).replace("{model}", quote(name, safe=""))
        connection.request(method.upper(), filled, raw, dict(HEADERS))
        reply = connection.getresponse()
        said = reply.read()
        assert reply.status < 500, (body, said[:500])
        assert reply.headers["x-request-id"], body
        if reply.status != 200:
            assert json.loads(said)["error"]["message"], body

    try:
        check()
    finally:
        connection.close()


async def test_no_body_of_any_route_is_answered_with_a_5xx(
    speaking: Gateway, speaking_engine: RealEngine
) -> None:
    async with httpx2.AsyncClient() as client:
        document = (await client.get(speaking.url + openapi.DOCUMENT.path)).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            examples = 40 if method == "post" else 3
            await asyncio.to_thread(check_route, speaking.url, method, path, operation, examples)
    await asyncio.to_thread(check_answers, speaking)
    async with httpx2.AsyncClient() as client:
        assert (await client.get(f"{speaking_engine.url}/health")).status_code == 200
