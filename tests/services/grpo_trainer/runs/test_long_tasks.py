"""No task is left behind for being long, however many engine places there are: the shipped slots and cutter
in a simulated clock, seeded."""

from __future__ import annotations

import statistics
from functools import cache

import pytest
from tests.services.grpo_trainer.runs.test_groups import member
from tests.services.grpo_trainer.sampling_clock import Seen, SimulatedRun, Spread

from grpo_trainer.domain.lengths import RATIO, Drawn, Lengths, length_metrics
from grpo_trainer.domain.trajectories import CompleteGroup
from upcycle.run_config import Training

EVEN, UNEVEN = Spread(0.5, 0.5), Spread(1.0, 0.5)
PLACES = (0.375, 1.0, 5.0)
STEPS, SEEDS = 40, range(3)


@cache
def runs(staleness: int, places: float, spread: Spread, stale_after: int = 0) -> list[Seen]:
    training = Training(prompts_per_step=16, max_staleness=staleness, stale_after=stale_after)
    return [SimulatedRun(training, places, spread, seed).played(STEPS) for seed in SEEDS]


def trained_to_drawn(found: list[Seen], staleness: int) -> float:
    trained = [length for one in found for length in one.after(staleness + 1)]
    return statistics.fmean(trained) / statistics.fmean(length for one in found for length in one.drawn)


def thrown_away(found: list[Seen]) -> float:
    lost = sum(len(one.thrown_away) for one in found)
    return lost / (lost + sum(len(step) for one in found for step in one.trained))


def seconds(found: list[Seen]) -> float:
    return sum(one.seconds for one in found)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("staleness", [1, 4])
def test_tasks_train_as_long_as_they_are_drawn(staleness: int, places: float) -> None:
    found = runs(staleness, places, EVEN)
    assert 0.95 <= trained_to_drawn(found, staleness) <= 1.05
    assert thrown_away(found) <= 0.02


@pytest.mark.parametrize(("places", "least"), [(0.375, 0.9), (1.0, 0.9), (5.0, 0.84)])
@pytest.mark.parametrize("staleness", [1, 4])
def test_a_few_very_long_tasks_train_too(staleness: int, places: float, least: float) -> None:
    found = runs(staleness, places, UNEVEN)
    assert least <= trained_to_drawn(found, staleness) <= 1.05
    assert thrown_away(found) <= 0.02


@pytest.mark.parametrize("spread", [EVEN, UNEVEN])
@pytest.mark.parametrize("places", PLACES)
def test_waiting_for_them_takes_no_more_time_than_throwing_them_away(places: float, spread: Spread) -> None:
    kept, thrown = runs(4, places, spread), runs(4, places, spread, stale_after=4)
    assert seconds(kept) <= seconds(thrown) * 1.005


def test_the_rule_of_one_bound_shows_what_the_measure_sees() -> None:
    """Groups past max_staleness thrown away: long tasks go missing, and the metric of a step says so."""
    starved = runs(4, 5.0, UNEVEN, stale_after=4)
    assert trained_to_drawn(starved, 4) < 0.6
    assert thrown_away(starved) > 0.15
    assert all(one.metrics[RATIO] < 0.7 for one in starved)
    assert all(0.9 <= one.metrics[RATIO] <= 1.1 for one in runs(4, 5.0, EVEN))


@pytest.mark.parametrize("spread", [EVEN, UNEVEN])
def test_the_mean_age_is_bounded_by_the_pace_and_the_oldest_by_the_limit(spread: Spread) -> None:
    for places in PLACES:
        for one in runs(4, places, spread):
            assert statistics.fmean(one.ages) <= 5
            assert max(one.ages) <= 32


def of(*tokens: int, **changes: str) -> CompleteGroup:
    members = tuple(member(number, 1, num_tokens=count) for number, count in enumerate(tokens))
    return CompleteGroup("g", members, 1, **changes)


def test_lengths_of_a_step_worked_out() -> None:
    first = length_metrics({}, [of(10, 20)], Drawn(), counts=False)
    assert first["length_mean"] == 15.0
    assert RATIO not in first, "the first steps hold what ended first"
    drawn = Drawn(waiting=Lengths.of([of(90, 30)]), stale=Lengths.of([of(60, 60)]))
    second = length_metrics(first, [of(30, 30), of(500, source_run_id="run-2")], drawn, counts=True)
    assert second["length_mean"] == 30.0
    # Trained 10 20 30 30, thrown away 60 60, waiting 90 30: 330 tokens in 8. Since the first steps: 30 30.
    assert second[RATIO] == pytest.approx(30 / (330 / 8))
    third = length_metrics(second, [of(90, 30)], Drawn(), counts=True)
    assert third[RATIO] == pytest.approx(((30 + 30 + 90 + 30) / 4) / (330 / 8))


def test_a_step_of_evaluations_alone_says_nothing_of_lengths() -> None:
    assert "length_mean" not in length_metrics({}, [of(5, source_run_id="run-2")], Drawn(), counts=True)
