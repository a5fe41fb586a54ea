"""Two versions by graded sessions: which test, what it says, and what is refused."""

from datetime import UTC, datetime, timedelta

import pytest

from upcycle.api.registry.v1.registry_pb2 import CanaryRelease
from upcycle.cli.compare_versions import newest_begin
from upcycle.reporting.comparison import NotComparable
from upcycle.reporting.verdicts import verdict_of
from upcycle.reporting.versions import GradedSession, compare_versions
from upcycle.statistics.independent import independent_difference
from upcycle.statistics.intervals import Estimate, Interval
from upcycle.statistics.paired import wilson

AT = datetime(2026, 5, 1, tzinfo=UTC)


def sessions(prefix: str, *rates: tuple[int, int]) -> list[GradedSession]:
    """One task for each (successes, sessions)."""
    return [
        GradedSession(f"{prefix}{task}", float(number < successes), number < successes)
        for task, (successes, count) in enumerate(rates)
        for number in range(count)
    ]


def rate(successes: int, trials: int) -> Estimate:
    return Estimate(successes / trials, Interval(*wilson(successes, trials, 1.959964)))


def test_the_square_and_add_interval_is_that_of_newcombes_table() -> None:
    """Newcombe 1998, table II, method 10: 56/70 - 48/80 and 9/10 - 3/10."""
    for a, b, low, high in (((48, 80), (56, 70), 0.0524, 0.3339), ((3, 10), (9, 10), 0.1705, 0.8090)):
        ends = independent_difference(rate(*a), rate(*b)).interval
        assert ends is not None
        assert (round(ends.low, 4), round(ends.high, 4)) == (low, high)


def test_an_arm_without_an_interval_gives_none() -> None:
    assert independent_difference(Estimate(0.5), rate(1, 2)) == Estimate(0.0)


def test_the_same_tasks_are_compared_task_by_task() -> None:
    before, after = [(1, 2)] * 10, [(2, 2)] * 9 + [(1, 2)]
    done = compare_versions(3, sessions("t", *before), 4, sessions("t", *after))
    assert (done.method, done.num_tasks) == ("paired", 10)
    assert (done.a.num_sessions, done.b.num_sessions) == (20, 20)
    assert done.success.value == pytest.approx(0.45)
    assert done.success.interval is not None
    # The deviation of nine halves and one 0 is 0.15811, and Student's t of 9 degrees 2.26216.
    assert done.success.interval.low == pytest.approx(0.45 - 0.11311, abs=1e-4)
    # Of 3 successes in a task 2 are B's with 1/2; of 2 successes 1 or more with 5/6, and both with 1/6.
    # As many or more: all nine and one of the tenth, or eight of the nine and both of the tenth.
    assert done.p_value == pytest.approx(2 * (0.5**9 * 5 / 6 + 9 * 0.5**9 / 6))
    assert verdict_of(done).better == "b"


def test_other_tasks_are_two_samples_and_few_of_them_decide_nothing() -> None:
    a, b = sessions("a", *[(0, 1)] * 30), sessions("b", *[(1, 1)] * 30)
    done = compare_versions(3, a, 4, b)
    assert (done.method, done.num_tasks, done.p_value) == ("two_samples", 30, None)
    assert done.success.value == 1.0
    assert done.success.interval is not None
    assert 0.7 < done.success.interval.low < 0.9
    assert verdict_of(done).better == "b"
    assert verdict_of(compare_versions(4, b, 3, a)).better == "a"
    few = compare_versions(3, a, 4, sessions("b", *[(1, 1)] * 9))
    assert (few.num_tasks, verdict_of(few).better) == (9, "unknown")
    # One task more on one side, and tasks are no pairs any more.
    shared = sessions("a", *[(1, 1)] * 31)
    assert compare_versions(3, a, 4, shared).method == "two_samples"


def test_many_attempts_at_one_task_are_no_more_tasks() -> None:
    """Twelve tasks of 50 attempts, half of them always solved: the interval is about that of twelve."""
    clustered = sessions("b", *[(50, 50)] * 6, *[(0, 50)] * 6)
    done = compare_versions(3, sessions("a", *[(1, 2)] * 12), 4, clustered)
    assert done.b.success.interval is not None
    assert done.b.success.interval.low < 0.3
    assert verdict_of(done).better != "b"


def test_a_version_without_a_graded_session_is_refused() -> None:
    with pytest.raises(NotComparable, match="v4 has no graded session"):
        compare_versions(3, sessions("a", (1, 1)), 4, [])


def test_sessions_count_from_where_the_newest_release_of_the_two_began() -> None:
    changes = []
    for hours, (version, share, shadow) in enumerate(
        [(4, 0.1, 0.0), (4, 0.0, 0.0), (4, 0.0, 0.5), (4, 0.2, 0.0), (5, 0.2, 0.0), (5, 0.0, 0.0)]
    ):
        change = CanaryRelease(version=version, share=share, shadow_share=shadow)
        change.changed_at.FromDatetime(AT + timedelta(hours=hours))
        changes.append(change)
    assert newest_begin(changes, {3, 4}) == AT + timedelta(hours=2)
    assert newest_begin(changes, {3, 5}) == AT + timedelta(hours=4)
    assert newest_begin(changes, {1, 2}) is None
    assert newest_begin([], {4}) is None
