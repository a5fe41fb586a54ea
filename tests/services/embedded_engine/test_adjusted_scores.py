"""Penalties, biases, echo, least lengths: on a real engine, and by expected numbers."""

import math
from typing import Any

import openai
import pytest
import torch
from tests.services.embedded_engine.conftest import MODEL, EngineProcess

from embedded_engine.adjusting import Biased, Penalised, Penalties

PROMPT = "amber-queue is failing"
CPU = torch.device("cpu")


def complete(engine: EngineProcess, **body: Any) -> Any:
    names = ("return_token_ids", "repetition_penalty", "min_p", "min_tokens", "stop_token_ids", "ignore_eos")
    extra = {name: body.pop(name) for name in (*names, "top_k") if name in body}
    given: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.0, **body}
    return engine.client.completions.create(
        model=MODEL, extra_body={"return_token_ids": True, **extra}, **given
    )


def ids_of(reply: Any) -> list[int]:
    return list(reply.choices[0].model_extra["token_ids"])


def test_penalties_change_scores_as_vllm_defines_them() -> None:
    penalised = Penalised(Penalties(repetition=2.0, frequency=0.5, presence=0.25), [0, 1], 5, CPU)
    for token in (2, 2, 3):
        penalised.accept(token)
    scores = torch.tensor([4.0, -4.0, 4.0, -4.0, 4.0])
    penalised.apply(scores)
    # Seen in the prompt: divided or multiplied. Drawn: also 0.5 for each time, and 0.25 once.
    assert scores.tolist() == [2.0, -8.0, 2.0 - 1.0 - 0.25, -8.0 - 0.5 - 0.25, 4.0]


def test_a_forbidden_token_stays_forbidden_under_penalties() -> None:
    penalised = Penalised(Penalties(repetition=0.5, frequency=-1.0), [0], 2, CPU)
    penalised.accept(0)
    scores = torch.tensor([-math.inf, 1.0])
    penalised.apply(scores)
    assert scores.tolist() == [-math.inf, 1.0]


def test_biases_are_added() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0])
    Biased({0: 5.0, 2: -1.5}, CPU).apply(scores)
    assert scores.tolist() == [6.0, 2.0, 1.5]


@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1e6}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}]
)
def test_each_penalty_changes_a_greedy_answer_and_says_so(
    engine: EngineProcess, penalty: dict[str, float]
) -> None:
    free, bound = (ids_of(complete(engine, max_tokens=40, ignore_eos=True, **p)) for p in ({}, penalty))
    assert len(set(bound)) > len(set(free))
    said = complete(engine, **penalty).choices[0].model_extra
    assert said["adjusted_by"] == list(penalty)
    assert "adjusted_by" not in complete(engine).choices[0].model_extra


def test_a_large_repetition_penalty_draws_each_token_once(engine: EngineProcess) -> None:
    reply = complete(engine, max_tokens=60, ignore_eos=True, repetition_penalty=1e6)
    prompt = complete(engine).choices[0].model_extra["prompt_token_ids"]
    made = ids_of(reply)
    assert len(set(made)) == len(made)
    assert not set(made) & set(prompt)


def test_penalised_logprobs_are_those_that_were_drawn_from(engine: EngineProcess) -> None:
    """Of the first token, whose penalised distribution follows from the free one."""
    free, bound = (
        complete(engine, logprobs=20, max_tokens=1, temperature=1.0, seed=1, logit_bias=bias)
        for bias in ({}, {"65": 3.0})
    )
    raw = free.choices[0].logprobs.top_logprobs[0]
    name = complete(engine, logit_bias={"65": 100}, max_tokens=1).choices[0].text
    changed = bound.choices[0].logprobs.top_logprobs[0]
    for token in raw.keys() & changed.keys() - {name}:
        others = next(iter(raw.keys() & changed.keys() - {name, token}))
        assert raw[token] - raw[others] == pytest.approx(changed[token] - changed[others], abs=1e-4)
    other = next(iter(raw.keys() & changed.keys() - {name}))
    if name in raw:
        assert changed[name] - changed[other] == pytest.approx(raw[name] - raw[other] + 3.0, abs=1e-4)


def test_a_bias_forces_and_forbids(engine: EngineProcess) -> None:
    forced = ids_of(complete(engine, logit_bias={"70": 100}, temperature=1.0, max_tokens=8))
    assert forced == [70] * 8
    free = ids_of(complete(engine))
    assert free[0] not in ids_of(complete(engine, logit_bias={str(free[0]): -100}))


def test_min_p_leaves_only_the_likeliest(engine: EngineProcess) -> None:
    greedy = ids_of(complete(engine))
    for seed in range(3):
        assert ids_of(complete(engine, temperature=1.0, min_p=1.0, seed=seed)) == greedy


def test_several_greedy_choices_are_equal(engine: EngineProcess) -> None:
    reply = complete(engine, n=3)
    assert [choice.text for choice in reply.choices] == [complete(engine).choices[0].text] * 3


def test_equal_seeds_repeat_under_penalties(engine: EngineProcess) -> None:
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 4, "presence_penalty": 1.0, "logit_bias": {"70": 2}}
    assert ids_of(complete(engine, **asked)) == ids_of(complete(engine, **asked))


def test_echo_puts_the_prompt_first_in_text_and_logprobs(engine: EngineProcess) -> None:
    plain, echoed = complete(engine, logprobs=2), complete(engine, logprobs=2, echo=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text
    own, both = plain.choices[0].logprobs, echoed.choices[0].logprobs
    prompt_length = len(plain.choices[0].model_extra["prompt_token_ids"])
    assert both.tokens[prompt_length:] == own.tokens
    assert "".join(both.tokens[:prompt_length]) == PROMPT
    assert both.token_logprobs[0] is None
    assert both.top_logprobs[0] is None
    assert both.token_logprobs[prompt_length:] == pytest.approx(own.token_logprobs, abs=1e-4)
    assert both.text_offset[prompt_length] == len(PROMPT)
    assert len(both.tokens) == len(both.token_logprobs) == len(both.top_logprobs) == len(both.text_offset)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_tokens_scores_the_prompt(engine: EngineProcess, stream: bool) -> None:
    scored = complete(engine, echo=True, max_tokens=0, logprobs=0, stream=stream)
    choice = (next(iter(scored)) if stream else scored).choices[0]
    assert choice.text == PROMPT
    assert choice.finish_reason == "length"
    expected = complete(engine, echo=True, max_tokens=1, logprobs=0).choices[0].logprobs.token_logprobs[:-1]
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected[1:], abs=1e-4)
    if not stream:
        assert (scored.usage.completion_tokens, scored.choices[0].model_extra["token_ids"]) == (0, [])


def test_a_streamed_echo_adds_up_to_the_whole(engine: EngineProcess) -> None:
    whole = complete(engine, echo=True, logprobs=1).choices[0]
    parts = [part.choices[0] for part in complete(engine, echo=True, logprobs=1, stream=True)]
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.logprobs.tokens] == whole.logprobs.tokens
    assert [at for part in parts for at in part.logprobs.text_offset] == whole.logprobs.text_offset


def test_a_least_length_holds_off_stop_tokens_and_stop_strings(engine: EngineProcess) -> None:
    free = ids_of(complete(engine, ignore_eos=True))
    stopped = ids_of(complete(engine, stop_token_ids=[free[2]]))
    assert stopped == free[: free.index(free[2]) + 1]
    late = ids_of(complete(engine, stop_token_ids=[free[2]], min_tokens=6))
    assert len(late) >= 6
    assert free[2] not in late[:6]
    once = complete(engine, logit_bias={"70": 100}, max_tokens=8, min_tokens=4).choices[0].text
    letter = once[0]
    cut = complete(engine, logit_bias={"70": 100}, max_tokens=8, min_tokens=4, stop=letter)
    assert cut.choices[0].text == letter * 4, "as vLLM: the first four are no stop, and stay in the text"
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("param", "body", "why"),
    [
        ("frequency_penalty", {"frequency_penalty": 2.5}, r"in \[-2, 2\]"),
        ("presence_penalty", {"presence_penalty": -3}, r"in \[-2, 2\]"),
        ("repetition_penalty", {"repetition_penalty": 0}, "greater than zero"),
        ("logit_bias", {"logit_bias": {"abc": 1}}, "token ids from 0 to"),
        ("logit_bias", {"logit_bias": {"100000": 1}}, "token ids from 0 to"),
        ("logit_bias", {"logit_bias": {"5": 101}}, "from -100 to 100"),
        ("min_p", {"min_p": 1.5}, r"in \[0, 1\]"),
        ("min_tokens", {"min_tokens": -1}, "greater than or equal to 0"),
        ("min_tokens", {"min_tokens": 25}, "less than or equal to max_tokens=24"),
        ("max_tokens", {"max_tokens": 0}, "at least 1"),
        ("bad_words", {"bad_words": ["x"]}, "not supported"),
    ],
)
def test_what_no_engine_could_mean_is_refused_by_name(
    engine: EngineProcess, param: str, body: dict[str, Any], why: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as refused:
        engine.client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"max_tokens": 24, **body})
    assert refused.value.param == param
    assert complete(engine, max_tokens=2).choices[0].text is not None
