"""A curve in one line of text."""

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` bars, oldest first, each the mean of several consecutive values. The scale goes from
    the lowest mean to the highest. Values that are not finite are left out.
    """
    finite = [value for value in values if isfinite(value)]
    if not finite or width < 1:
        return ""
    means = _means(finite, width)
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * len(means)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in means)


def _means(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    bars = min(width, count)
    edges = [bar * count // bars for bar in range(bars + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
