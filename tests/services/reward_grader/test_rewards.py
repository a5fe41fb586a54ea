"""Rewards on values alone: which grade is valid, how scores are weighed, what an event has room for."""

import math

import pytest

from reward_grader.domain import Grade, Subscore, clipped, combined, why_invalid


def chain(depth: int, **last: float) -> Subscore:
    """A reward tree of `depth` levels, named n1, n2, ...; `last`: fields of the deepest node."""
    fields = {"weight": 1.0, "value": 1.0, **last}
    node = Subscore(f"n{depth}", fields["weight"], fields["value"])
    for level in range(depth - 1, 0, -1):
        node = Subscore(f"n{level}", 1.0, 1.0, children=(node,))
    return node


def test_a_finite_reward_of_any_size_without_a_tree_is_valid() -> None:
    assert why_invalid(Grade(-3.5, False)) is None
    assert why_invalid(Grade(0.0, False, (Subscore("a", 0.0, 0.0), Subscore("b", -2.0, 1.0)))) is None


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_named_with_its_value(reward: float) -> None:
    assert why_invalid(Grade(reward, True)) == f"reward is {reward}, expected a finite number"


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan, math.inf])
def test_a_subscore_outside_0_to_1_is_named_by_its_path(value: float) -> None:
    grade = Grade(1.0, True, (Subscore("ok", 1.0, 0.5), chain(3, value=value)))
    assert why_invalid(grade) == f"subscore 'n1/n2/n3' has value {value}, expected 0..1"


@pytest.mark.parametrize("weight", [math.nan, -math.inf])
def test_a_weight_that_is_no_number_is_named_by_its_path(weight: float) -> None:
    said = f"subscore 'n1/n2' has weight {weight}, expected a finite number"
    assert why_invalid(Grade(1.0, True, (chain(2, weight=weight),))) == said


def test_the_first_bad_node_in_the_order_of_the_tree_is_the_one_that_is_named() -> None:
    bad = [Subscore(name, 1.0, 2.0) for name in ("first", "second")]
    below = Subscore("top", 1.0, 1.0, children=(*bad, Subscore("third", 1.0, 3.0)))
    said = "subscore 'top/first' has value 2.0, expected 0..1"
    assert why_invalid(Grade(1.0, True, (below, *bad))) == said
    assert why_invalid(Grade(1.0, True, tuple(bad))) == "subscore 'first' has value 2.0, expected 0..1"


def test_a_tree_of_32_levels_is_valid_and_one_of_33_is_not() -> None:
    assert why_invalid(Grade(1.0, True, (chain(32),))) is None
    # "n1/" to "n9/" are 27 characters, "n10/" to "n27/" 72 more: of 100 the last is the n of n28.
    path = "/".join(f"n{level}" for level in range(1, 28)) + "/n"
    assert len(path) == 100
    said = f"reward tree is deeper than 32 levels at {path!r}"
    assert why_invalid(Grade(1.0, True, (chain(33),))) == said


OF_ENVIRONMENT = Grade(0.5, True, (Subscore("service", 1.0, 0.5, "found", (Subscore("name", 2.0, 0.25),)),))


def test_without_extra_scores_the_grade_is_the_environments() -> None:
    assert combined(OF_ENVIRONMENT, 2.0, ()) is OF_ENVIRONMENT


def test_the_reward_is_the_weighted_mean_and_success_the_environments_alone() -> None:
    scores = (Subscore("brief", 3.0, 1.0), Subscore("polite", 1.0, 0.25))
    own = Subscore("environment", 2.0, 0.5, children=OF_ENVIRONMENT.subscores)
    # (2 x 0.5 + 3 x 1 + 1 x 0.25) / (2 + 3 + 1)
    assert combined(OF_ENVIRONMENT, 2.0, scores) == Grade(4.25 / 6, True, (own, *scores))
    assert not combined(Grade(1.0, False), 1.0, scores).success


def test_an_event_gets_the_reward_with_short_texts_and_its_first_level_or_all_of_them() -> None:
    leaf = Subscore("name", 2.0, 0.25, "abcdef", (Subscore("letter", 1.0, 1.0, "xyz"),))
    grade = Grade(0.5, True, (Subscore("service", 1.0, 0.5, "found it", (leaf,)),))
    top = Subscore("service", 1.0, 0.5, "found")
    assert clipped(grade, max_info_chars=5, with_children=False) == Grade(0.5, True, (top,))
    short = Subscore("name", 2.0, 0.25, "abcde", (Subscore("letter", 1.0, 1.0, "xyz"),))
    whole = Subscore("service", 1.0, 0.5, "found", (short,))
    assert clipped(grade, max_info_chars=5, with_children=True) == Grade(0.5, True, (whole,))
