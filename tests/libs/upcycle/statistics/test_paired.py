"""Each number here is worked by hand or taken from a textbook."""

import math

import pytest

from upcycle.statistics.paired import PairedTask, bootstrap_lower, exact_p_value, wilson


def one_attempt(both: int, only_candidate: int, only_head: int, neither: int) -> list[PairedTask]:
    """The paired table as tasks with one attempt each."""
    cells = [(1, 1)] * both + [(1, 0)] * only_candidate + [(0, 1)] * only_head + [(0, 0)] * neither
    return [PairedTask("f", c, 1, h, 1) for c, h in cells]


def test_wilson_interval_of_45_in_50_at_one_sided_95_percent() -> None:
    low, high = wilson(45, 50, 1.6449)
    assert low == pytest.approx(0.808, abs=1e-3)
    assert high == pytest.approx(0.950, abs=1e-3)


def test_wilson_interval_of_nothing_is_everything() -> None:
    assert wilson(0, 0, 1.96) == (0.0, 1.0)


def test_exact_test_is_mcnemar_with_one_attempt_each() -> None:
    # b = 8 candidate only, c = 2 head only: P(X >= 8 | 10, 1/2) = (45 + 10 + 1) / 1024.
    assert exact_p_value(one_attempt(40, 8, 2, 10)) == pytest.approx(56 / 1024)


def test_exact_test_of_the_opposite_direction() -> None:
    # P(X >= 2 | 10, 1/2) = 1 - 11/1024.
    assert exact_p_value(one_attempt(40, 2, 8, 10)) == pytest.approx(1 - 11 / 1024)


def test_exact_test_conditions_on_each_tasks_successes() -> None:
    # 2 of 2 against 0 of 2: both successes fall on the candidate in 1 of C(4,2) = 6 ways.
    assert exact_p_value([PairedTask("f", 2, 2, 0, 2)]) == pytest.approx(1 / 6)
    # Twice the same, independent: 1/36.
    assert exact_p_value([PairedTask("f", 2, 2, 0, 2)] * 2) == pytest.approx(1 / 36)


def test_exact_test_takes_unequal_attempts() -> None:
    # 1 of 1 against 0 of 3: the one success is the candidate's in 1 of 4 ways.
    assert exact_p_value([PairedTask("f", 1, 1, 0, 3)]) == pytest.approx(1 / 4)


def test_exact_test_without_a_difference_says_nothing() -> None:
    assert exact_p_value(one_attempt(5, 0, 0, 5)) == 1.0


def test_bootstrap_of_a_constant_is_that_constant() -> None:
    assert bootstrap_lower([0.25] * 30, 0.05, seed=1, reps=200) == pytest.approx(0.25)


def test_bootstrap_of_one_task_proves_nothing() -> None:
    assert bootstrap_lower([1.0], 0.05, seed=1, reps=200) == -1.0


def test_bootstrap_repeats_and_depends_on_its_seed() -> None:
    differences = [1.0, 0.0, -0.5, 0.5, 0.0, 1.0, -1.0, 0.5] * 4
    first = bootstrap_lower(differences, 0.05, seed=7, reps=500)
    assert first == bootstrap_lower(differences, 0.05, seed=7, reps=500)
    assert first != bootstrap_lower(differences, 0.05, seed=8, reps=500)


def test_bootstrap_agrees_with_the_normal_bound_on_a_large_sample() -> None:
    differences = [1.0] * 150 + [0.0] * 200 + [-1.0] * 50
    n = len(differences)
    mean = sum(differences) / n
    sd = math.sqrt(sum((x - mean) ** 2 for x in differences) / (n - 1))
    expected = mean - 1.6449 * sd / math.sqrt(n)
    assert bootstrap_lower(differences, 0.05, seed=3, reps=8000) == pytest.approx(expected, abs=0.006)
