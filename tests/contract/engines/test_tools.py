"""Tool calls in Hermes form, from a policy that always makes one; each engine is started for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from tests.contract.engines.conftest import ENGINES, MODEL, EngineUnderTest, engine_on
from tests.contract.engines.test_wire import stream_of
from tests.services.policy_engine.policies import TOOL_CALL_BODY

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "why is it slow?"}],
    "max_tokens": 16,
    "temperature": 0,
    "return_token_ids": True,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=ENGINES)
async def caller(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineUnderTest]:
    """An engine that serves the tool caller."""
    folder: Path = tmp_path_factory.mktemp(f"caller-{request.param}")
    under_test = await engine_on(request.param, folder, calls_tools=True)
    yield under_test
    await under_test.host.stop()


async def test_a_call_becomes_a_tool_call_with_its_arguments(caller: EngineUnderTest) -> None:
    status, reply = await caller.post("/v1/chat/completions", {**BODY, "tools": [SEARCH]})
    assert status == 200, reply
    choice = reply["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"]["content"]
    assert call["type"] == "function"
    assert call["id"]
    assert call["function"]["name"] == "search"
    assert orjson.loads(call["function"]["arguments"]) == {"query": "disk"}
    assert len(choice["token_ids"]) == 4, "call, body, end of call, end of turn"


async def test_without_tools_the_same_tokens_are_text(caller: EngineUnderTest) -> None:
    _, reply = await caller.post("/v1/chat/completions", BODY)
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == f"<tool_call>{TOOL_CALL_BODY}</tool_call>"
    assert not choice["message"].get("tool_calls")


async def test_a_streamed_call_adds_up_to_the_whole(caller: EngineUnderTest) -> None:
    chunks = await stream_of(caller, "/v1/chat/completions", {**BODY, "tools": [SEARCH], "stream": True})
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    name = "".join(call["function"].get("name") or "" for call in calls)
    arguments = "".join(call["function"].get("arguments") or "" for call in calls)
    assert (name, orjson.loads(arguments)) == ("search", {"query": "disk"})
    assert {call["index"] for call in calls} == {0}
    assert "".join(choice["delta"].get("content") or "" for choice in choices).strip() == ""
    assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == ["tool_calls"]


async def test_the_answer_to_a_call_extends_the_conversation(caller: EngineUnderTest) -> None:
    _, first = await caller.post("/v1/chat/completions", {**BODY, "tools": [SEARCH]})
    message = first["choices"][0]["message"]
    history = [
        *BODY["messages"],
        {"role": "assistant", "content": message["content"] or "", "tool_calls": message["tool_calls"]},
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "disk is full"},
    ]
    _, second = await caller.post("/v1/chat/completions", {**BODY, "tools": [SEARCH], "messages": history})
    assert second["choices"][0]["finish_reason"] == "tool_calls"
    assert len(second["prompt_token_ids"]) > len(first["prompt_token_ids"])
    await asyncio.sleep(0)
