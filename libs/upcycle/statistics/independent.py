"""The difference of two estimates that were made from different tasks."""

import math

from upcycle.statistics.intervals import Estimate, Interval


def independent_difference(a: Estimate, b: Estimate) -> Estimate:
    """b minus a, with the interval that follows from those of both: the square-and-add method.

    Newcombe 1998 (Statistics in Medicine 17:873, method 10) for two rates with Wilson's intervals; Zou and
    Donner 2008 (Statistics in Medicine 27:1693) for any two estimates. It keeps what the two intervals took
    into account, here the clustering by task. None where one of them has no interval.
    """
    value = b.value - a.value
    if a.interval is None or b.interval is None:
        return Estimate(value)
    down = math.hypot(b.value - b.interval.low, a.interval.high - a.value)
    up = math.hypot(b.interval.high - b.value, a.value - a.interval.low)
    return Estimate(value, Interval(value - down, value + up))
