"""How well scores rank outcomes, and whether they mean what they say; each number is worked by hand."""

import math
import random

import pytest

from upcycle.statistics.ranking import ScoredOutcome, auc_estimate, auc_within_tasks, calibration_of
from upcycle.statistics.student import t_quantile


def scored(**tasks: list[tuple[float, bool]]) -> list[ScoredOutcome]:
    return [ScoredOutcome(task, score, success) for task, rows in tasks.items() for score, success in rows]


SEPARATE = scored(a=[(0.9, True), (0.4, False)], b=[(0.6, True), (0.6, False)], c=[(0.2, True), (0.1, False)])
"""Successes .9 .6 .2, failures .4 .6 .1: of nine pairs .9 wins 3, .6 wins 2 and ties 1, .2 wins 1."""


def test_the_auc_is_the_share_of_pairs_in_which_the_success_scores_higher_and_a_tie_is_half() -> None:
    found = auc_estimate(SEPARATE)
    assert found is not None
    assert found.value == pytest.approx((3 + 2.5 + 1) / 9)


def test_the_interval_of_an_auc_is_clustered_by_task() -> None:
    # Placements of successes: 1, 5/6, 1/3; of failures 2/3 (.4), 1/2 (.6), 1 (.1); each minus 13/18 and over
    # 3, summed by task: a (5/18 - 1/18)/3 = 2/27, b (2/18 - 4/18)/3 = -1/27, c (-7/18 + 5/18)/3 = -1/27.
    # Their squares are 6/729; times 3/2: variance 1/81, error 1/9. Log-odds of 13/18: ln(13/5); slope 324/65.
    found = auc_estimate(SEPARATE)
    assert found is not None
    assert found.interval is not None
    half = t_quantile(0.975, 2) * (1 / 9) * 324 / 65
    odds = math.log(13 / 5)
    ends = [1 / (1 + math.exp(-end)) for end in (odds - half, odds + half)]
    assert [found.interval.low, found.interval.high] == pytest.approx(ends)


def test_repeating_every_attempt_of_a_task_adds_no_certainty() -> None:
    once, twice = auc_estimate(SEPARATE), auc_estimate([*SEPARATE, *SEPARATE])
    assert once is not None
    assert twice is not None
    assert once.interval is not None
    assert twice.interval is not None
    assert twice.value == pytest.approx(once.value)
    assert twice.interval.low == pytest.approx(once.interval.low)


def test_scores_that_only_know_which_task_is_easy_rank_nothing_within_tasks() -> None:
    rows = scored(
        easy=[(0.9, True), (0.9, True), (0.9, False)], hard=[(0.1, True), (0.1, False), (0.1, False)]
    )
    over_all, within = auc_estimate(rows), auc_within_tasks(rows)
    assert over_all is not None
    assert over_all.value > 0.6
    assert within is not None
    assert within.value == 0.5


def test_within_tasks_every_pair_counts_once() -> None:
    # a: 1 pair, right. b: 2 successes over 1 failure: one right, one wrong. c has one outcome: no pair.
    rows = scored(a=[(0.8, True), (0.2, False)], b=[(0.9, True), (0.1, True), (0.5, False)], c=[(0.3, True)])
    found = auc_within_tasks(rows)
    assert found is not None
    assert found.value == pytest.approx(2 / 3)


def test_where_all_outcomes_are_alike_there_is_no_auc() -> None:
    rows = scored(a=[(0.9, True)], b=[(0.1, True)])
    assert auc_estimate(rows) is None
    assert auc_within_tasks(rows) is None


def test_a_perfect_ranking_of_few_tasks_claims_no_certainty() -> None:
    found = auc_estimate(scored(a=[(0.9, True)], b=[(0.1, False)]))
    assert found is not None
    assert (found.value, found.interval) == (1.0, None)


def test_calibration_compares_scores_with_what_happened() -> None:
    rows = scored(a=[(0.75, True), (0.25, False)], b=[(0.75, True), (0.25, True)])
    found = calibration_of(rows)
    assert found.bias.value == pytest.approx(0.5 - 0.75)
    assert found.brier.value == pytest.approx((1 / 16 + 1 / 16 + 1 / 16 + 9 / 16) / 4)
    assert found.brier_of_rate == pytest.approx(3 / 16)
    bins = [(one.predicted, one.observed.value, one.num_episodes) for one in found.bins]
    assert bins == [(0.25, 0.5, 2), (0.75, 1.0, 2)]


def test_intervals_of_an_auc_hold_the_truth_about_as_often_as_they_say() -> None:
    """Scores of successes lie one standard deviation higher, tasks differ by as much: AUC over pairs of
    different tasks is Phi(1 / 2)."""
    rng, inside, truth = random.Random(3), 0, 0.5 * (1 + math.erf(0.5 / math.sqrt(2)))
    for _ in range(200):
        rows = []
        for task in range(30):
            shift = rng.gauss(0, 1)
            for _ in range(4):
                success = rng.random() < 0.5
                rows.append(ScoredOutcome(str(task), rng.gauss(success, 1) + shift, success))
        found = auc_estimate(rows)
        assert found is not None
        assert found.interval is not None
        inside += found.interval.low <= truth <= found.interval.high
    assert 0.90 <= inside / 200 <= 0.99
