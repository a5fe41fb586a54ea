"""Shapes of requests and replies, as vLLM 0.32 has them."""

from typing import Any

import aiohttp
import orjson
import pytest
from tests.contract.engines.conftest import MODEL, EngineUnderTest
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [1, 90, 91, 92, 40, 41, 42, 7]
MESSAGES = [{"role": "user", "content": "hello"}]


async def test_completions_carry_ids_and_one_logprob_each(engine: EngineUnderTest) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 5, "logprobs": 0, "return_token_ids": True}
    body["seed"] = 7  # no stop token among the five
    status, reply = await engine.post("/v1/completions", body)
    choice = reply["choices"][0]
    assert status == 200
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 5
    assert choice["finish_reason"] == "length"
    assert reply["usage"] | {"prompt_tokens_details": None} == reply["usage"] | {
        "prompt_tokens_details": None
    }
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (8, 5)


async def test_completions_spell_tokens_as_ids_when_asked(engine: EngineUnderTest) -> None:
    body = {
        "model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "logprobs": 2,
        "return_token_ids": True, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    _, reply = await engine.post("/v1/completions", body)
    choice = reply["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])


async def test_several_prompts_and_choices_come_in_order(engine: EngineUnderTest) -> None:
    body = {
        "model": MODEL, "prompt": [[1, 50], [1, 60]], "n": 2, "max_tokens": 2, "temperature": 1,
        "return_token_ids": True,
    }  # fmt: skip
    _, reply = await engine.post("/v1/completions", body)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [[1, 50], [1, 50], [1, 60], [1, 60]]


async def test_streamed_completions_add_up_to_the_whole(engine: EngineUnderTest) -> None:
    body = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 6,
        "temperature": 0,
        "logprobs": 0,
        "return_token_ids": True,
    }
    _, whole = await engine.post("/v1/completions", body)
    chunks = await stream_of(engine, "/v1/completions", {**body, "stream": True})
    parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    assert [token for part in parts for token in part["token_ids"]] == whole["choices"][0]["token_ids"]
    assert parts[-1]["finish_reason"] == "length"


async def test_generate_says_which_version_made_each_token(engine: EngineUnderTest) -> None:
    params = {"max_tokens": 4, "logprobs": 0, "temperature": 1.0, "seed": 3}
    body = {"model": MODEL, "token_ids": PROMPT, "sampling_params": params}
    status, reply = await engine.post("/inference/v1/generate", body)
    choice = reply["choices"][0]
    assert status == 200
    assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 4}]
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]


async def test_chat_returns_prompt_and_sampled_ids(engine: EngineUnderTest) -> None:
    _, tokenized = await engine.post("/tokenize", {"model": MODEL, "messages": MESSAGES})
    body = {
        "model": MODEL, "messages": MESSAGES, "max_tokens": 5, "temperature": 1, "logprobs": True,
        "return_token_ids": True,
    }  # fmt: skip
    status, reply = await engine.post("/v1/chat/completions", body)
    choice = reply["choices"][0]
    assert status == 200
    assert reply["object"] == "chat.completion"
    assert reply["prompt_token_ids"] == tokenized["tokens"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])
    assert choice["message"]["role"] == "assistant"
    assert set(choice["logprobs"]["content"][0]) == {"token", "logprob", "bytes", "top_logprobs"}


async def test_a_streamed_chat_adds_up_to_the_whole(engine: EngineUnderTest) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    _, whole = await engine.post("/v1/chat/completions", body)
    asked = {**body, "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    chunks = await stream_of(engine, "/v1/chat/completions", asked)
    deltas = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    text = "".join(delta["delta"].get("content") or "" for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert chunks[0]["prompt_token_ids"][:1] == [1]
    assert deltas[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_text_parts_are_joined_and_tools_change_the_prompt(engine: EngineUnderTest) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    _, plain = await engine.post("/tokenize", {"model": MODEL, "messages": MESSAGES})
    _, joined = await engine.post("/tokenize", {"model": MODEL, "messages": parts})
    tool = {
        "type": "function",
        "function": {"name": "search", "parameters": {"type": "object", "properties": {}}},
    }
    _, tooled = await engine.post("/tokenize", {"model": MODEL, "messages": MESSAGES, "tools": [tool]})
    assert joined["tokens"] == plain["tokens"]
    assert tooled["count"] > plain["count"]
    assert plain["max_model_len"] == 512


async def test_models_are_listed_with_their_context(engine: EngineUnderTest) -> None:
    listed = (await engine.get("/v1/models"))["data"]
    assert [(card["id"], card["max_model_len"]) for card in listed] == [(MODEL, 512)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "nobody", "prompt": PROMPT}, 404),
        ({"model": MODEL, "prompt": [1, 99999]}, 400),
        ({"model": MODEL, "prompt": [1, -5]}, 400),
        ({"model": MODEL, "prompt": []}, 400),
        ({"model": MODEL, "prompt": ""}, 400),
        ({"model": MODEL, "prompt": PROMPT, "max_tokens": 0}, 400),
        ({"model": MODEL, "prompt": PROMPT, "max_tokens": 100_000}, 400),
        ({"model": MODEL, "prompt": PROMPT, "temperature": -1}, 400),
        ({"model": MODEL, "prompt": PROMPT, "top_p": 0}, 400),
        ({"model": MODEL, "prompt": PROMPT, "top_k": -3}, 400),
        ({"model": MODEL, "prompt": PROMPT, "n": 0}, 400),
        ({"model": MODEL, "prompt": PROMPT, "logprobs": 500}, 400),
        ({"model": MODEL, "prompt": PROMPT, "max_tokens": "many"}, 400),
        ([], 400),
    ],
)
async def test_bad_requests_get_the_error_envelope_and_the_engine_lives(
    engine: EngineUnderTest, body: Any, status: int
) -> None:
    found, reply = await engine.post("/v1/completions", body)
    assert found == status
    assert set(reply["error"]) == {"message", "type", "param", "code"}
    assert reply["error"]["code"] == status
    assert reply["error"]["message"]
    assert await engine.client.health()


async def test_other_json_and_other_paths_are_refused(engine: EngineUnderTest) -> None:
    async with aiohttp.ClientSession() as session:
        broken = await session.post(
            f"{engine.url}/v1/completions", data=b"{bad", headers={"content-type": "application/json"}
        )
        assert broken.status == 400
        key = {"Authorization": f"Bearer {engine.host.admin_key}"}
        nowhere = await session.get(f"{engine.url}/nope", headers=key)
        assert nowhere.status == 404


async def test_generate_wants_ids_and_sampling_params(engine: EngineUnderTest) -> None:
    status, reply = await engine.post("/inference/v1/generate", {"model": MODEL})
    assert status == 400
    assert "token_ids" in reply["error"]["message"]


async def test_requests_are_counted(engine: EngineUnderTest) -> None:
    async def is_idle() -> bool:
        return await engine.metric("vllm:num_requests_running") == 0

    await until(is_idle, "the end of what the tests before left")
    before = await engine.metric("vllm:generation_tokens_total")
    await engine.post("/v1/completions", {"model": MODEL, "prompt": PROMPT, "max_tokens": 7})

    async def is_counted() -> bool:
        made = await engine.metric("vllm:generation_tokens_total") - before
        return (made, await engine.metric("vllm:num_requests_running")) == (7, 0)

    await until(is_counted, "7 more tokens and no request")


async def stream_of(engine: EngineUnderTest, path: str, body: Any) -> list[Any]:
    """The chunks of a streamed reply, which must end with [DONE]."""
    async with aiohttp.ClientSession() as session, session.post(engine.url + path, json=body) as reply:
        assert reply.status == 200, await reply.text()
        lines = (await reply.text()).split("\n")
    events = [line[5:].strip() for line in lines if line.startswith("data:")]
    assert events[-1] == "[DONE]"
    return [orjson.loads(event) for event in events[:-1]]
