"""What counts as growth."""

import random

import pytest
from tests.chaos.slopes import DAY_S, curve, slope


def test_a_straight_line_is_found_exactly_and_its_warm_up_left_out() -> None:
    points = [(float(t), 1000.0) for t in range(10)] + [(float(t), 100.0 + 2.0 * t) for t in range(10, 30)]
    found = slope(points)
    assert found is not None
    assert found.level == pytest.approx(120.0)  # at second 10
    assert found.per_day == pytest.approx(2.0 * DAY_S)
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_what_doubles_in_half_a_day_grows_and_what_takes_two_days_does_not() -> None:
    fast = slope([(t * 60.0, 100.0 * (1 + t * 60.0 / (DAY_S / 2))) for t in range(30)])
    slow = slope([(t * 60.0, 100.0 * (1 + t * 60.0 / (2 * DAY_S))) for t in range(30)])
    assert fast is not None
    assert fast.doubles_in_a_day
    assert slow is not None
    assert not slow.doubles_in_a_day


def test_noise_is_no_growth() -> None:
    rng = random.Random(7)
    found = slope([(t * 5.0, 100.0 + rng.uniform(-10, 10)) for t in range(60)])
    assert found is not None
    assert not found.doubles_in_a_day


def test_a_few_points_say_nothing() -> None:
    assert slope([(float(t), float(t)) for t in range(10)]) is None


def test_the_curve_shows_where_growth_ends() -> None:
    points = [(float(t), float(min(t, 10))) for t in range(40)]
    assert curve(points) == [1.5, 5.5, 9.25, *[10.0] * 7]
    assert curve(points[:3]) == [0.0, 1.0, 2.0]
