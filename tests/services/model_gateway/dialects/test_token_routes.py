"""Token ids in and out, as verifiers and trainers ask for them."""

from typing import Any

import aiohttp
import pytest
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.dialects.conftest import MODEL

ASK: Any = [{"role": "user", "content": "Why is checkout down?"}]


async def post(gateway: Gateway, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        session.post(gateway.url + path, json=body) as reply,
    ):
        assert reply.headers["x-request-id"]
        return reply.status, await reply.json()


async def test_ids_of_a_conversation_go_in_and_ids_come_out(speaking: Gateway) -> None:
    status, said = await post(speaking, "/tokenize", {"model": MODEL, "messages": ASK})
    assert status == 200
    ids = said["tokens"]
    assert len(ids) == said["count"] > 0
    sampling = {"max_tokens": 6, "temperature": 0, "logprobs": 1, "skip_special_tokens": False}
    status, generated = await post(
        speaking, "/inference/v1/generate", {"model": MODEL, "token_ids": ids, "sampling_params": sampling}
    )
    assert status == 200
    (choice,) = generated["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 6
    body = {"model": MODEL, "messages": ASK, "tokens": ids, "max_tokens": 6, "temperature": 0}
    status, chat = await post(speaking, "/v1/chat/completions/tokens", {**body, "return_token_ids": True})
    assert status == 200
    assert chat["choices"][0]["token_ids"] == choice["token_ids"]
    assert chat["prompt_token_ids"] == ids
    status, text = await post(speaking, "/detokenize", {"model": MODEL, "tokens": choice["token_ids"]})
    assert (status, text["prompt"].startswith(chat["choices"][0]["message"]["content"])) == (200, True)


async def test_the_ids_of_a_stream_are_counted(speaking: Gateway) -> None:
    body = {
        "model": MODEL,
        "token_ids": [1, 2, 3],
        "sampling_params": {"max_tokens": 5, "ignore_eos": True},
        "stream": True,
    }
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session,
        session.post(f"{speaking.url}/inference/v1/generate", json=body) as reply,
    ):
        assert b"[DONE]" in await reply.read()
    (row,) = await speaking.usage(1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (3, 5)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokns": 4}}, "max_tokns"),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"n": 1000}}, "n"),
        ("/inference/v1/generate", {"token_ids": "abc", "sampling_params": {}}, "token_ids"),
        ("/inference/v1/generate", {"sampling_params": {}}, "token_ids"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": True}, "add_special_tokens"),
        ("/v1/chat/completions/tokens", {"messages": ASK, "tokens": [10**9]}, None),
    ],
)
async def test_what_is_wrong_is_named(
    speaking: Gateway, path: str, body: dict[str, Any], param: str | None
) -> None:
    status, said = await post(speaking, path, {"model": MODEL, **body})
    assert status == 400
    assert said["error"]["param"] == param
    assert said["request_id"]
