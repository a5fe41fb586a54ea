"""Seconds of an engine: each counts once, however many requests share it."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rollout_sampler.adapters.engines import EngineSeconds


def at(clock: list[float]) -> Callable[[], float]:
    """A clock that a test sets."""
    return lambda: clock[0]


def test_a_second_with_two_requests_counts_half_for_each() -> None:
    clock = [100.0]
    engine = EngineSeconds(at(clock))
    first = engine.begin()
    clock[0] = 101.0
    second = engine.begin()
    clock[0] = 103.0
    assert engine.end(second) == 1.0  # two seconds, shared by two
    clock[0] = 104.0
    assert engine.end(first) == 3.0  # one alone, two shared, one alone
    clock[0] = 110.0
    third = engine.begin()
    clock[0] = 110.5
    assert engine.end(third) == 0.5  # the idle time before it counts for no request


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4)), min_size=1, max_size=12))
def test_requests_pay_for_exactly_the_time_in_which_the_engine_had_any(spans: list[tuple[int, int]]) -> None:
    clock = [0.0]
    engine = EngineSeconds(at(clock))
    begun: dict[int, float] = {}
    total = busy_s = 0.0
    for second in range(14):
        clock[0] = float(second)
        for number, (start, length) in enumerate(spans):
            if start + length == second:
                total += engine.end(begun.pop(number))
            if start == second:
                begun[number] = engine.begin()
        busy_s += bool(begun)
    assert abs(total - busy_s) < 1e-9
