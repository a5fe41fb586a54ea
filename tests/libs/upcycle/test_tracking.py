"""Points of a tracked set: when it fell, and when the reward rises without it. Expected numbers by hand."""

import random
from collections.abc import Sequence

import pytest

from upcycle.statistics.intervals import TaskTotal
from upcycle.tracking import (
    TrackedPoint,
    TrackedSet,
    change,
    drops,
    fell_twice,
    parse_tracked,
    reward_alone,
    why_ended,
    worst_families,
)

FAMILIES = {f"t{task}": f"family-{task % 6}" for task in range(60)}


def point(step: int, solved: Sequence[int], reward: float = 0.5, num_trained: int = 256) -> TrackedPoint:
    """60 tasks, of which these are solved."""
    outcomes = {f"t{task}": TaskTotal(float(task in solved), 1) for task in range(60)}
    return TrackedPoint(step, step, outcomes, FAMILIES, reward, num_trained)


def at(step: int, num: int, reward: float = 0.5) -> TrackedPoint:
    """The first so many tasks are solved."""
    return point(step, range(num), reward)


@pytest.mark.parametrize(
    ("text", "tracked"), [("held", TrackedSet("held", 10)), ("held@2:every=5", TrackedSet("held@2", 5))]
)
def test_a_set_is_named_with_its_steps(text: str, tracked: TrackedSet) -> None:
    assert parse_tracked(text) == tracked


@pytest.mark.parametrize("text", ["", "held:every=0", "held:every=x", "held:5", "a b", ":every=2"])
def test_a_set_that_is_named_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not TASKSET or TASKSET:every=STEPS"):
        parse_tracked(text)


def test_a_change_is_paired_by_task() -> None:
    # 6 of 60 tasks lost: mean -.1; spread 6 * .81 + 54 * .01 + .25 = 5.65; t(.975, 59) = 2.001.
    moved = change(at(1, 30), at(2, 24))
    assert moved.mean == pytest.approx(-0.1)
    assert moved.high - moved.mean == pytest.approx(2.001 * (5.65 / 59 / 60) ** 0.5, rel=1e-3)
    assert moved.high < 0
    # The same rates from other tasks: 30 lost, 24 won.
    assert change(at(1, 30), point(2, range(30, 54))).high > 0


def test_two_drops_in_a_row_are_against_the_last_point_that_had_not_dropped() -> None:
    falling = [at(5, 40), at(10, 30), at(15, 29)]
    assert drops(falling) == [False, True, True]
    assert fell_twice(falling) == falling
    recovered = [at(5, 40), at(10, 30), at(15, 40), at(20, 30)]
    assert drops(recovered) == [False, True, False, True]
    assert fell_twice(recovered) == ()
    assert fell_twice(falling[:2]) == ()
    slow = [at(5, 40), at(10, 38), at(15, 36)]  # two tasks of sixty prove nothing
    assert drops(slow) == [False, False, False]


def test_an_equal_policy_seldom_ends_a_run() -> None:
    rng, ended = random.Random(3), 0
    for _ in range(300):
        chances = [rng.random() for _ in range(60)]
        played = [
            point(step, [task for task in range(60) if rng.random() < chances[task]]) for step in range(10)
        ]
        ended += bool(fell_twice(played))
    assert ended <= 12  # 4 %, over ten looks


def test_the_worst_families_come_first_and_gains_do_not_come() -> None:
    before, after = point(5, range(60)), point(10, [task for task in range(60) if task % 6 not in (1, 4)])
    assert worst_families(before, after) == [("family-1", -1.0), ("family-4", -1.0)]
    assert worst_families(after, before) == []


def test_an_ended_run_says_by_what_and_how_to_look() -> None:
    fall = [point(5, range(60)), point(10, range(1, 60)), point(15, [t for t in range(60) if t % 6])]
    said = why_ended("sums-held", fall, ["run-a", "run-b", "run-c"])
    assert said == (
        "ended early: sums-held fell twice in a row: 100.0% at step 5, 98.3% at step 10, 83.3% at step 15; "
        "worst: family-0 -100.0% (upcycle trajectories list --run run-c --family family-0)"
    )


def test_a_reward_that_parts_from_the_set_is_an_alarm_once_two_points_say_so() -> None:
    proxy = [at(1, 20, 0.3), at(5, 36, 0.55), at(10, 34, 0.75), at(15, 30, 0.9)]
    assert reward_alone("held", proxy[:3]) == ""
    said = reward_alone("held", proxy)
    assert said.startswith(
        "reward up, benchmark not: since step 5 the reward rose from 0.550 to 0.900, while held"
    )
    assert "moved by -10.0%" in said


def test_learning_raises_nothing() -> None:
    both = [at(1, 12, 0.2), at(5, 24, 0.4), at(10, 36, 0.6), at(15, 48, 0.8), at(20, 49, 0.82)]
    assert all(reward_alone("held", both[:count]) == "" for count in range(1, 6))
    few = [point(step, range(20), 0.3 + step / 50, num_trained=8) for step in (1, 5, 10)]
    assert reward_alone("held", few) == ""  # eight episodes a step say little of the reward
