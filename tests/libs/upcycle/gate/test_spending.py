"""How error is spent over looks and over the candidates of a run."""

from statistics import NormalDist

import numpy as np
import pytest

from upcycle.gate.errors import BadGateRule
from upcycle.gate.spending import AlphaWealth, look_levels


def test_the_bounds_are_those_that_were_published() -> None:
    """Lan and DeMets 1983, error spent in proportion to information, 5 equal looks, one-sided .025."""
    bounds = [NormalDist().inv_cdf(1 - level) for level in look_levels(0.025, (1, 2, 3, 4, 5))]
    assert bounds == pytest.approx([2.58, 2.49, 2.41, 2.34, 2.28], abs=0.006)


@pytest.mark.parametrize("looks", [(2, 4), (2, 4, 8, 16), (1, 3, 64)])
def test_all_looks_together_spend_the_level(looks: tuple[int, ...]) -> None:
    """400,000 scores without a drift: the share that passes has a standard error of .00034."""
    gains = np.sqrt(np.diff((0, *looks)))
    scores = np.cumsum(gains * np.random.default_rng(0).normal(size=(400_000, len(looks))), axis=1)
    bounds = [
        NormalDist().inv_cdf(1 - level) * look**0.5
        for level, look in zip(look_levels(0.05, looks), looks, strict=True)
    ]
    assert (scores > bounds).any(axis=1).mean() == pytest.approx(0.05, abs=3 * 0.00034)


def test_a_single_look_spends_all() -> None:
    assert look_levels(0.05, (8,))[0] == pytest.approx(0.05)


def test_without_a_promotion_a_run_spends_half_of_its_error_however_long_it_is() -> None:
    wealth, spent = AlphaWealth(alpha=0.05), 0.0
    for _ in range(2000):
        spent += wealth.next_level
        wealth = wealth.after(promoted=False)
    assert 0.0245 < spent < 0.025


def test_a_promotion_earns_error_for_the_next_candidate() -> None:
    """Shares of 1, 2, 3: 2.2857657 ** -1 times 1, 2 ** -1.6, 3 ** -1.6 = .43749, .14432, .07544."""
    held = AlphaWealth(alpha=0.05, tested=2)
    promoted = AlphaWealth(alpha=0.05, tested=2, promoted=(2,))
    twice = AlphaWealth(alpha=0.05, tested=2, promoted=(1, 2))
    assert held.next_level == pytest.approx(0.025 * 0.07544, rel=1e-3)
    assert promoted.next_level == pytest.approx(0.025 * (0.07544 + 0.43749), rel=1e-3)
    assert twice.next_level == pytest.approx(0.025 * (0.07544 + 0.14432) + 0.05 * 0.43749, rel=1e-3)


@pytest.mark.parametrize("promoted", [(0,), (3,), (2, 1), (1, 1)])
def test_promotions_that_are_no_candidates_are_refused(promoted: tuple[int, ...]) -> None:
    with pytest.raises(BadGateRule, match="promoted"):
        AlphaWealth(tested=2, promoted=promoted)
