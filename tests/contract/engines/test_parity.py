"""The two engines side by side on the same weights."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.contract.engines.conftest import MODEL, EngineUnderTest, engine_on

from engine_client import SamplingParams

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[EngineUnderTest]]:
    """Both, on policies of equal bytes."""
    folders: list[Path] = [tmp_path_factory.mktemp(kind) for kind in ("embedded", "vllm")]
    started = [
        await engine_on(kind, folder) for kind, folder in zip(("embedded", "vllm"), folders, strict=True)
    ]
    yield started
    for engine in started:
        await engine.host.stop()


async def test_greedy_tokens_are_equal_and_logprobs_within_a_thousandth(both: list[EngineUnderTest]) -> None:
    prompts = [[1, 40 + index, *range(30, 36 + 5 * index)] for index in range(12)]
    params = SamplingParams(max_tokens=32, temperature=0)
    made = [
        await asyncio.gather(*(engine.client.generate(MODEL, prompt, params) for prompt in prompts))
        for engine in both
    ]
    for embedded, vllm in zip(*made, strict=True):
        assert embedded.token_ids == vllm.token_ids
        assert embedded.logprobs == pytest.approx(vllm.logprobs, abs=1e-3)
        assert embedded.finish_reason == vllm.finish_reason


async def test_both_engines_give_a_prompt_the_same_logprobs(both: list[EngineUnderTest]) -> None:
    ids = [1, *range(20, 220)]
    embedded, vllm = [await engine.client.prompt_logprobs(MODEL, ids) for engine in both]
    assert embedded == pytest.approx(vllm, abs=1e-3)


async def test_conversations_become_the_same_prompt(both: list[EngineUnderTest]) -> None:
    # vLLM fills in an absent description as null and orders the keys like this.
    function = {"name": "f", "description": "finds", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "näher, 字"}], "tools": [tool]}
    replies = [await engine.post("/tokenize", body) for engine in both]
    assert replies[0][1]["tokens"] == replies[1][1]["tokens"]
