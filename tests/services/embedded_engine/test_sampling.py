"""Drawing tokens: exact distributions, independent rows, honest log-probabilities."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from embedded_engine.sampling import Sampled, SamplingSpec, SamplingTable


def draw(logits: torch.Tensor, specs: list[SamplingSpec], drawn: int = 0) -> Sampled:
    """One token per row; row i has specs[i]."""
    table = SamplingTable(len(specs))
    for slot, spec in enumerate(specs):
        table.set(slot, spec)
    slots = np.arange(len(specs))
    return table.sample(logits.clone(), slots, np.full(len(specs), drawn), ())


def spec(**changes: object) -> SamplingSpec:
    return SamplingSpec(**{"max_tokens": 1, **changes})  # type: ignore[arg-type]


def test_frequencies_are_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    rows = 20_000
    found = Counter(draw(logits.repeat(rows, 1), [spec(seed=i) for i in range(rows)]).token_ids)
    expected = torch.softmax(logits, dim=0)
    chi_square = sum(
        (found[token] - rows * float(p)) ** 2 / (rows * float(p)) for token, p in enumerate(expected)
    )
    # 4 degrees of freedom: 23.5 is passed by a fair die with probability 0.9999.
    assert chi_square < 23.5


def test_frequencies_hold_across_blocks_of_a_large_vocabulary() -> None:
    vocab, rows = 1000, 40_000
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0))
    tokens = draw(logits.expand(rows, vocab), [spec(seed=i) for i in range(rows)]).token_ids
    found = torch.bincount(torch.tensor(tokens), minlength=vocab).double()
    expected = torch.softmax(logits.double(), dim=0) * rows
    chi_square = float(((found - expected) ** 2 / expected).sum())
    # Mean 999, standard deviation 45.
    assert chi_square < 999 + 5 * 45


def test_temperature_divides_and_the_logprob_says_so() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]] * 64)
    made = draw(logits, [spec(temperature=0.5, seed=i) for i in range(64)])
    expected = torch.log_softmax(torch.tensor([0.0, 2.0, 6.0]), dim=0)
    for token, logprob in zip(made.token_ids, made.logprobs, strict=True):
        assert logprob == pytest.approx(float(expected[token]), abs=1e-6)


def test_greedy_rows_take_the_likeliest_and_report_the_unscaled_logprob() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 3.0]])
    made = draw(logits, [spec(temperature=0.0), spec(temperature=0.0, top_k=1, top_p=0.1)])
    assert made.token_ids == [2, 2]
    assert made.logprobs[0] == made.logprobs[1] == pytest.approx(3 - math.log(1 + math.e + math.e**3))


def test_top_k_keeps_k_and_renormalises() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]] * 200)
    made = draw(logits, [spec(top_k=2, seed=i) for i in range(200)])
    assert set(made.token_ids) == {2, 3}
    third = math.log(math.e / (1 + math.e))
    by_token = dict(zip(made.token_ids, made.logprobs, strict=True))
    assert by_token[2] == pytest.approx(third, abs=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    # Probabilities 0.5, 0.3, 0.15, 0.05: p = 0.7 needs the first two.
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(300, 1)
    made = draw(logits, [spec(top_p=0.7, seed=i) for i in range(300)])
    assert set(made.token_ids) == {0, 1}
    by_token = dict(zip(made.token_ids, made.logprobs, strict=True))
    assert by_token[0] == pytest.approx(math.log(0.5 / 0.8), abs=1e-5)
    tiny = draw(logits[:20], [spec(top_p=1e-6, seed=i) for i in range(20)])
    assert set(tiny.token_ids) == {0}, "one token always stays"
    assert tiny.logprobs == pytest.approx([0.0] * 20)


def test_limits_of_one_row_do_not_touch_another() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    mixed = draw(logits, [spec(seed=1), spec(seed=2, top_k=1), spec(temperature=0.0)])
    alone = draw(logits[:1], [spec(seed=1)])
    assert mixed.token_ids[0] == alone.token_ids[0]
    assert mixed.logprobs[0] == pytest.approx(alone.logprobs[0], abs=1e-6)
    assert mixed.token_ids[1] == int(logits[1].argmax())


def test_a_draw_depends_on_seed_and_position_only() -> None:
    logits = torch.zeros(1, 1000)
    first = [draw(logits, [spec(seed=5)], drawn=n).token_ids[0] for n in range(30)]
    assert first == [draw(logits, [spec(seed=5)], drawn=n).token_ids[0] for n in range(30)]
    other = [draw(logits, [spec(seed=6)], drawn=n).token_ids[0] for n in range(30)]
    assert len(set(first)) > 20
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 3


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((2000, 70), -math.inf)
    logits[:, 33] = 0.0
    logits[:, 69] = -20.0
    made = draw(logits, [spec(seed=i) for i in range(2000)])
    assert set(made.token_ids) == {33}
    assert all(math.isfinite(value) for value in made.logprobs)


def test_banned_tokens_are_not_drawn() -> None:
    table = SamplingTable(2)
    for slot in (0, 1):
        table.set(slot, spec(temperature=0.0))
    logits = torch.tensor([[0.0, 5.0], [0.0, 5.0]])
    made = table.sample(logits, np.array([0, 1]), np.zeros(2, dtype=np.int64), [(1,), ()])
    assert made.token_ids == [0, 1]


def test_the_likeliest_tokens_come_with_the_rank_of_the_drawn_one() -> None:
    made = draw(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), [spec(temperature=0.0)])
    top = made.top(0, 3)
    assert top.token_ids == [1, 3, 2]
    assert top.rank == 1
