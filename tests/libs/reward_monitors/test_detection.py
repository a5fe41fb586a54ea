"""When a rate is too high: worked by hand."""

import math
import random

import pytest

from reward_monitors.detection import BASELINE, LearnedRate, RateDetector


def test_five_hits_in_a_row_raise_and_four_do_not() -> None:
    # A hit brings ln(.17/.02) = 2.140; the threshold is ln 10,000 = 9.210.
    detector = RateDetector(0.02, 0.17)
    assert [detector.add(True) for _ in range(5)] == [False, False, False, False, True]
    assert detector.evidence == pytest.approx(5 * math.log(8.5))


def test_an_alarm_clears_when_its_evidence_is_used_up() -> None:
    # 5 hits are 10.700; a miss takes ln(.83/.98) = -0.1661: gone with the 65th.
    detector = RateDetector(0.02, 0.17)
    for _ in range(5):
        detector.add(True)
    states = [detector.add(False) for _ in range(65)]
    assert states == [True] * 64 + [False]


def test_an_alarm_of_long_standing_clears_as_soon_as_its_bound_allows() -> None:
    # The evidence is at most 2 ln 10,000 = 18.42: 111 misses.
    detector = RateDetector(0.02, 0.17)
    for _ in range(10_000):
        detector.add(True)
    for _ in range(110):
        assert detector.add(False)
    assert not detector.add(False)


def test_the_tolerated_rate_raises_next_to_never() -> None:
    # The mean run length is at least 10,000, so that about 5 of 100 streams of 500 raise it at most.
    rng, raised = random.Random(1), 0
    for _ in range(100):
        detector = RateDetector(0.02, 0.17)
        raised += any(detector.add(rng.random() < 0.02) for _ in range(500))
    assert raised <= 5


def test_a_rate_of_one_in_five_is_found_within_a_hundred_observations() -> None:
    rng = random.Random(2)
    for _ in range(50):
        detector = RateDetector(0.02, 0.17)
        assert any(detector.add(rng.random() < 0.2) for _ in range(150))


def test_what_was_usual_is_tolerated() -> None:
    rate = LearnedRate()
    for number in range(BASELINE):
        rate.add(number % 4 == 0)  # 24 of 96
    # (24 + 2) / 100 = .26, error sqrt(.26 * .74 / 96) = .04477; .25 + 3 * .04477 = .3843
    assert rate.detector is not None
    assert rate.detector.tolerated == pytest.approx(0.3843, abs=1e-4)
    assert not any(rate.add(number % 4 == 0) for number in range(2000))


def test_nothing_is_raised_while_the_baseline_is_learned() -> None:
    rate = LearnedRate()
    assert not any(rate.add(True) for _ in range(BASELINE))
