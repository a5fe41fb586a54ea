"""Intervals of one evaluation and of a difference; each number here is worked by hand."""

import math
import random

import pytest

from upcycle.statistics.intervals import (
    Estimate,
    Interval,
    TaskTotal,
    difference_estimate,
    mean_estimate,
    rate_estimate,
)
from upcycle.statistics.student import t_quantile


def tasks(*totals: float, attempts: int) -> list[TaskTotal]:
    return [TaskTotal(total, attempts) for total in totals]


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.interval is not None
    return estimate.interval.low, estimate.interval.high


def test_attempts_that_only_repeat_their_task_count_less_than_attempts() -> None:
    # Residuals ±1 in 4 tasks of 2, and 2²/16: variance 4.25/8² · 4/3 = .08854, so 2.8235 effective attempts,
    # not 8. t of 3 is 3.18245: half = 3.18245 · sqrt(.08854 + 10.128/31.889) / (1 + 10.128/2.8235) = .4421.
    found = rate_estimate(tasks(2, 2, 0, 0, attempts=2))
    assert found.value == 0.5
    assert ends(found) == pytest.approx((0.0579, 0.9421), abs=1e-4)


def test_tasks_without_spread_count_as_independent_attempts() -> None:
    # Wilson of 4 in 8: half = 3.18245 · sqrt(0.25/8 + 10.128/256) / (1 + 10.128/8) = 0.3737.
    assert ends(rate_estimate(tasks(1, 1, 1, 1, attempts=2))) == pytest.approx((0.1263, 0.8737), abs=1e-4)


def test_all_solved_is_not_certainty_and_counts_tasks_not_attempts() -> None:
    # Wilson of 20 in 20: low = 20 / (20 + 4.38075), the square of t with 19 degrees of freedom, 2.09302.
    assert ends(rate_estimate(tasks(*[4] * 20, attempts=4))) == pytest.approx((0.8203, 1.0), abs=1e-4)
    assert ends(rate_estimate(tasks(*[0] * 20, attempts=4))) == pytest.approx((0.0, 0.1797), abs=1e-4)


def test_one_task_has_no_interval() -> None:
    assert rate_estimate(tasks(8, attempts=8)) == Estimate(1.0)
    assert mean_estimate(tasks(8, attempts=8)) == Estimate(1.0)


def test_a_mean_of_two_tasks_knows_its_spread_by_two_tasks_only() -> None:
    # Means 0 and 1: the error is sqrt(.5 / 2), and t with one degree of freedom is tan(0.475 π) = 12.706.
    half = 0.5 * math.tan(0.475 * math.pi)
    assert ends(mean_estimate(tasks(0, 8, attempts=8))) == pytest.approx((0.5 - half, 0.5 + half))
    assert mean_estimate(tasks(0, 8, attempts=8), bounds=(0, 1)).interval == Interval(0, 1)


def test_a_mean_weighs_attempts_where_some_are_missing() -> None:
    assert mean_estimate([TaskTotal(3, 3), TaskTotal(0, 1)]).value == 0.75


def test_equal_tasks_have_no_interval_of_the_mean() -> None:
    assert mean_estimate(tasks(1, 1, 1, attempts=2)) == Estimate(0.5)
    assert difference_estimate([0.25] * 30) == Estimate(0.25)


def test_the_interval_of_a_difference_is_students() -> None:
    # Mean .25, squared deviations 3 · .0625 + .75² = .75, error sqrt(.75 / 3 / 4) = .25, t of 3 is 3.18245.
    assert ends(difference_estimate([0, 0, 0, 1])) == pytest.approx((-0.5456, 1.0456), abs=1e-4)


def test_tasks_of_unequal_attempts_weigh_by_attempts() -> None:
    # Ratio 3 of 4, residuals .75 and -.75: error sqrt(2 · .5625 · 2) / 4 = .375.
    half = 0.375 * math.tan(0.475 * math.pi)
    assert ends(mean_estimate([TaskTotal(3, 3), TaskTotal(0, 1)])) == pytest.approx(
        (0.75 - half, 0.75 + half)
    )


def test_a_difference_of_success_stays_between_its_bounds() -> None:
    assert difference_estimate([-1, 1], bounds=(-1, 1)).interval == Interval(-1, 1)


@pytest.mark.parametrize(
    ("freedom", "t"),  # of a table: two-sided 95 %
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (30, 2.04227), (31, 2.03951), (120, 1.97993)],
)
def test_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(t, abs=5e-5)


@pytest.mark.parametrize("num_tasks", [3, 10])
def test_two_equal_models_differ_in_about_one_interval_of_twenty(num_tasks: int) -> None:
    rng, missed = random.Random(3), 0
    for _ in range(200):
        low, high = ends(difference_estimate([rng.gauss(0, 1) for _ in range(num_tasks)]))
        missed += not low <= 0 <= high
    assert missed <= 20  # 10 expected, standard deviation 3; 40 of 3 tasks without t


def test_no_task_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="no task was graded"):
        rate_estimate([])
