"""What counts as growth."""

import math
import random
from collections.abc import Callable

import pytest
from tests.chaos.slopes import DAY_S, curve, growth

EVERY_S, SOAK_S = 5.0, 1800.0
MEGABYTE = 1e6
Series = Callable[[float], float]


def found(series: Series, noise: float = 0.0, seed: int = 7) -> bool:
    """Whether half an hour of it, measured each five seconds, counts as growth."""
    rng = random.Random(seed)
    times = [EVERY_S * number for number in range(int(SOAK_S / EVERY_S))]
    measured = growth([(t, series(t) + rng.gauss(0, noise)) for t in times])
    assert measured is not None
    return measured.doubles_in_a_day


def line(per_s: float, level: float = 150 * MEGABYTE) -> Series:
    return lambda t: level + per_s * t


def filling(amount: float, in_s: float, level: float = 150 * MEGABYTE) -> Series:
    return lambda t: level + amount * (1 - math.exp(-t / in_s))


def leases(t: float) -> float:
    """A runner at 50 episodes a second that keeps 2 kB of each for 180 s."""
    return 130 * MEGABYTE + 2e3 * 50 * min(t, 180.0)


LEAK = 5e3
"""Bytes a second: 500 of them from each of ten episodes. 150 MB become more than 300 in ten hours."""


def both(one: Series, other: Series) -> Series:
    return lambda t: one(t) + other(t)


def steps_of(megabytes: float, every_s: float) -> Series:
    """An allocator takes memory in large pieces."""
    return lambda t: 150 * MEGABYTE + megabytes * MEGABYTE * (t // every_s)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "leaking",
    [
        line(LEAK),
        both(line(LEAK), filling(70 * MEGABYTE, 120.0, 0)),
        both(line(LEAK), filling(70 * MEGABYTE, 300.0, 0)),
        both(line(2 * LEAK, 0), leases),
        steps_of(1, 120.0),
        both(line(LEAK), lambda t: 2 * MEGABYTE * math.sin(t / 30)),
    ],
)
def test_a_leak_is_growth_beside_whatever_fills_up(leaking: Series, seed: int) -> None:
    assert found(leaking, 0.3 * MEGABYTE, seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "healthy",
    [
        line(0.0),
        line(1e3),  # 86 of 150 MB a day
        filling(70 * MEGABYTE, 60.0),
        filling(70 * MEGABYTE, 180.0),
        filling(70 * MEGABYTE, 400.0),
        leases,
        lambda t: (150 + 20 * (t > 700)) * MEGABYTE,  # a cache that a later run fills
        lambda t: (150 + 20 * (t > 1500)) * MEGABYTE,
        lambda t: (150 + 4 * min(t // 300, 3)) * MEGABYTE,
        lambda t: 28.0 + min(t // 200, 6),  # connections to the object store
    ],
)
def test_what_fills_up_or_steps_once_is_no_growth(healthy: Series, seed: int) -> None:
    assert not found(healthy, 0.002 * healthy(0), seed)


def test_a_straight_line_is_found_exactly_and_its_warm_up_left_out() -> None:
    points = [(float(t), 1000.0) for t in range(10)] + [(float(t), 100.0 + 2.0 * t) for t in range(10, 100)]
    measured = growth(points)
    assert measured is not None
    assert measured.per_day == pytest.approx(2.0 * DAY_S)
    assert measured.at_the_end == pytest.approx(2.0 * DAY_S)
    assert measured.level == pytest.approx(120.0, abs=3.0)  # the first block of the line
    assert measured.error == pytest.approx(0.0, abs=1e-3)


def test_growth_and_filling_are_distinguished() -> None:
    """100 + 0.01 a second, and 20 more that fill up in a tenth of the time."""
    times = [EVERY_S * number for number in range(400)]
    measured = growth([(t, 100 + 0.01 * t + 20 * (1 - math.exp(-t / 180))) for t in times])
    assert measured is not None
    assert measured.per_day == pytest.approx(0.01 * DAY_S, rel=0.02)
    assert measured.filled == pytest.approx(20 * math.exp(-200 / 180), rel=0.15)  # the warm-up took the rest


def test_what_doubles_in_half_a_day_grows_and_what_takes_two_days_does_not() -> None:
    assert found(lambda t: 100.0 * (1 + t / (DAY_S / 2)))
    assert not found(lambda t: 100.0 * (1 + t / (2 * DAY_S)))


def test_a_few_points_say_nothing() -> None:
    assert growth([(float(t), float(t)) for t in range(12)]) is None


def test_the_curve_shows_where_growth_ends() -> None:
    points = [(float(t), float(min(t, 10))) for t in range(40)]
    assert curve(points) == [1.5, 5.5, 9.25, *[10.0] * 7]
    assert curve(points[:3]) == [0.0, 1.0, 2.0]
