"""Tokens, logprobs and versions on the wire."""

import asyncio
import math

import pytest
import torch
from tests.contract.engines.conftest import MODEL, EngineUnderTest
from tests.services.policy_engine.policies import END_OF_TURN
from tests.services.policy_engine.reference import reference_logits, reference_logprobs

from engine_client import ContextOverflow, EngineRejected, FinishReason, SamplingParams, TokenSpan

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = [1, 90, 91, 92, 40, 41, 42, 7]


async def test_greedy_tokens_and_logprobs_are_the_references(engine: EngineUnderTest) -> None:
    made = await engine.client.generate(MODEL, PROMPT, SamplingParams(max_tokens=24, temperature=0))
    tokens, directory = list(PROMPT), engine.directory(0)
    for token, logprob in zip(made.token_ids, made.logprobs, strict=True):
        expected = torch.log_softmax(reference_logits(directory, tokens)[-1], dim=-1)
        assert token == int(expected.argmax())
        assert logprob == pytest.approx(float(expected[token]), abs=1e-3)
        tokens.append(token)
    assert made.version_spans == (TokenSpan(0, 0, len(made.token_ids)),)
    assert made.spans_are_exact


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.6), (1.3, 12, 0.8)]
)
async def test_sampled_logprobs_are_those_of_the_distribution_that_was_drawn_from(
    engine: EngineUnderTest, temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(max_tokens=12, temperature=temperature, top_k=top_k, top_p=top_p)
    made = await engine.client.generate(MODEL, PROMPT, params)
    tokens = list(PROMPT)
    for token, logprob in zip(made.token_ids, made.logprobs, strict=True):
        logits = reference_logits(engine.directory(0), tokens)[-1] / temperature
        kept = _kept(logits, top_k, top_p)
        expected = torch.log_softmax(logits.masked_fill(~kept, -math.inf), dim=-1)
        assert bool(kept[token]), "a token outside top-k or top-p was sampled"
        assert logprob == pytest.approx(float(expected[token]), abs=1e-3)
        tokens.append(token)


def _kept(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Tokens that survive top-k, then top-p: the smallest likeliest set whose mass exceeds p."""
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_k:
        kept &= logits >= logits.topk(top_k).values[-1]
    probabilities = torch.softmax(logits.masked_fill(~kept, -math.inf), dim=-1)
    mass, nucleus = 0.0, torch.zeros_like(kept)
    for token in probabilities.argsort(descending=True).tolist():
        if mass >= top_p and top_p < 1.0:
            break
        nucleus[token] = True
        mass += float(probabilities[token])
    return kept & nucleus


async def test_a_stop_token_is_the_last_of_the_ids_and_a_budget_is_length(engine: EngineUnderTest) -> None:
    free = await engine.client.generate(MODEL, PROMPT, SamplingParams(max_tokens=10, temperature=0))
    assert free.finish_reason is FinishReason.LENGTH or free.token_ids[-1] == END_OF_TURN
    wanted = free.token_ids[4]
    stop = SamplingParams(max_tokens=10, temperature=0, stop_token_ids=(wanted,))
    made = await engine.client.generate(MODEL, PROMPT, stop)
    assert made.finish_reason is FinishReason.STOP
    assert made.token_ids == free.token_ids[: free.token_ids.index(wanted) + 1]
    assert len(made.logprobs) == len(made.token_ids)


async def test_equal_seeds_repeat_and_other_seeds_do_not(engine: EngineUnderTest) -> None:
    def params(seed: int | None) -> SamplingParams:
        return SamplingParams(max_tokens=16, temperature=1.0, seed=seed)

    first, again, other, unseeded, unseeded_again = await asyncio.gather(
        *(engine.client.generate(MODEL, PROMPT, params(seed)) for seed in (7, 7, 8, None, None))
    )
    assert first.token_ids == again.token_ids
    assert len({first.token_ids, other.token_ids, unseeded.token_ids, unseeded_again.token_ids}) == 4


async def test_prompt_logprobs_are_the_references(engine: EngineUnderTest) -> None:
    ids = [1, *range(30, 60), 2, 1, 88]
    scored = await engine.client.prompt_logprobs(MODEL, ids)
    assert scored == pytest.approx(reference_logprobs(engine.directory(0), ids), abs=1e-3)


async def test_a_conversation_that_grows_is_sampled_as_if_it_were_new(engine: EngineUnderTest) -> None:
    prompt = [1, *range(40, 80)]
    params = SamplingParams(max_tokens=12, temperature=0.9)
    for turn in range(3):
        made = await engine.client.generate(MODEL, prompt, params)
        whole = reference_logprobs(engine.directory(0), [*prompt, *made.token_ids], 0.9)
        assert made.logprobs == pytest.approx(whole[len(prompt) - 1 :], abs=1e-3)
        prompt = [*prompt, *made.token_ids, 2, 1, 60 + turn, 61]


async def test_many_at_once_get_the_same_as_one_alone(engine: EngineUnderTest) -> None:
    prompts = [[1, 50 + index, *range(20, 20 + 3 * index)] for index in range(24)]
    params = SamplingParams(max_tokens=10, temperature=0)
    alone = [await engine.client.generate(MODEL, prompt, params) for prompt in prompts]
    together = await asyncio.gather(*(engine.client.generate(MODEL, prompt, params) for prompt in prompts))
    for one, many in zip(alone, together, strict=True):
        assert many.token_ids == one.token_ids
        assert many.logprobs == pytest.approx(one.logprobs, abs=1e-3)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [([5] * 600, 4), ([5] * 512, 4)], ids=["beyond the context", "exactly full"]
)
async def test_a_prompt_without_room_is_a_context_overflow(
    engine: EngineUnderTest, prompt: list[int], max_tokens: int
) -> None:
    with pytest.raises(ContextOverflow):
        await engine.client.generate(MODEL, prompt, SamplingParams(max_tokens=max_tokens))
    assert await engine.client.health()


async def test_a_nearly_full_context_ends_by_length(engine: EngineUnderTest) -> None:
    made = await engine.client.generate(MODEL, [5] * 508, SamplingParams(max_tokens=20, temperature=0))
    assert made.finish_reason is FinishReason.LENGTH
    assert len(made.token_ids) == 4


async def test_an_unknown_model_is_rejected(engine: EngineUnderTest) -> None:
    with pytest.raises(EngineRejected) as caught:
        await engine.client.generate("nobody", PROMPT, SamplingParams(max_tokens=2))
    assert caught.value.status == 404
