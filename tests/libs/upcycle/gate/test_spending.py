"""How error is spent over looks and over the candidates of a run."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from upcycle.gate.errors import BadGateRule
from upcycle.gate.spending import AlphaWealth, look_levels


@pytest.mark.parametrize("level", [0.05, 0.002])
@pytest.mark.parametrize("looks", [(4,), (2, 4), (1, 2, 3, 4), (2, 4, 8, 16), (2, 4, 8, 16, 64)])
def test_all_looks_together_spend_the_level(level: float, looks: tuple[int, ...]) -> None:
    """By another integration: the joint normal distribution of the scores at the looks."""
    at = np.array(looks)
    correlation = np.sqrt(np.minimum.outer(at, at) / np.maximum.outer(at, at))
    bounds = norm.isf(look_levels(level, looks))
    below = multivariate_normal.cdf(bounds, cov=correlation, abseps=1e-7, maxpts=2_000_000, rng=0)
    assert 1 - below == pytest.approx(level, rel=0.01)


def test_a_single_look_spends_all() -> None:
    assert look_levels(0.05, (8,)) == (pytest.approx(0.05),)


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
