"""The exact binomial, by numbers that are worked by hand."""

import math

import pytest

from upcycle.statistics.binomial import binomial_tail


@pytest.mark.parametrize(
    ("hits", "num", "chance", "tail"),
    [
        (0, 0, 0.5, 1.0),
        (0, 7, 0.02, 1.0),
        (8, 7, 0.5, 0.0),
        (3, 3, 0.5, 1 / 8),
        (2, 3, 0.5, 4 / 8),
        (1, 3, 0.5, 7 / 8),
        (1, 2, 0.25, 7 / 16),
        (2, 2, 0.25, 1 / 16),
    ],
)
def test_tails_of_few(hits: int, num: int, chance: float, tail: float) -> None:
    assert binomial_tail(hits, num, chance) == pytest.approx(tail, rel=1e-12)


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.98])
def test_of_a_thousand_each_tail_adds_its_term_and_none_leaves_0_to_1(chance: float) -> None:
    tails = [binomial_tail(hits, 1000, chance) for hits in range(1002)]
    assert all(0.0 <= tail <= 1.0 for tail in tails)
    for hits in (10, 500, 990):
        exact = math.comb(1000, hits) * chance**hits * (1 - chance) ** (1000 - hits)
        assert tails[hits] - tails[hits + 1] == pytest.approx(exact, rel=1e-6, abs=1e-14)
