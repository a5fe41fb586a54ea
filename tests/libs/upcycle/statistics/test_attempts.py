"""Several attempts at one task; each number here is worked by hand."""

import pytest

from upcycle.statistics.attempts import has_spread, histogram, ks_up_to, pass_at_k, pass_hat_k


def test_pass_at_k_is_one_minus_the_draws_without_a_success() -> None:
    assert pass_at_k(1, 4, 1) == 0.25
    assert pass_at_k(1, 4, 2) == 1 - 3 / 6  # C(3,2) of C(4,2) draws miss the one success
    assert pass_at_k(2, 4, 3) == 1.0  # three of four cannot all be of the two that failed
    assert pass_at_k(0, 4, 4) == 0.0


def test_pass_hat_k_is_the_draws_of_successes_alone() -> None:
    assert pass_hat_k(3, 4, 1) == 0.75
    assert pass_hat_k(3, 4, 2) == 3 / 6
    assert pass_hat_k(3, 4, 4) == 0.0
    assert pass_hat_k(4, 4, 4) == 1.0


@pytest.mark.parametrize("numbers", [(1, 4, 5), (1, 4, 0), (5, 4, 1), (-1, 4, 1)])
def test_more_draws_than_attempts_are_refused(numbers: tuple[int, int, int]) -> None:
    for estimator in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="use 1 <= k <= attempts"):
            estimator(*numbers)


def test_the_ks_are_powers_of_two_and_the_group() -> None:
    assert [ks_up_to(attempts) for attempts in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_a_group_has_spread_where_two_rewards_differ() -> None:
    assert [has_spread(rewards) for rewards in ([], [0.5], [0.5, 0.5], [0.5, 0.6])] == [False] * 3 + [True]


def test_a_reward_of_one_is_in_the_last_bin_and_one_outside_is_refused() -> None:
    assert histogram([0.0, 0.05, 0.1, 0.99, 1.0]) == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    for outside in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="outside 0 to 1"):
            histogram([outside])
