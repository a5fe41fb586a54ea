"""Does it grow? What was measured is taken apart into what fills up and ends, and what goes on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

DAY_S: Final = 86_400.0
WARM_UP: Final = 0.1
"""Share of the points, the first ones, that is left out: imports happen, pools open."""
_FILLS_IN: Final = (1 / 40, 1 / 20, 1 / 10, 1 / 6, 1 / 4)
"""How fast something may fill up, in shares of what is measured. What takes longer counts as growth: only a
longer soak tells."""
_SURE: Final = 3.0
"""Standard errors that growth must lie above the limit."""
_FEWEST: Final = 12
_BLOCKS: Final = 40
"""Means of neighbouring points, so that one point hardly says what the next one is."""
_TENTHS: Final = 10
_END: Final = 1 / 3
"""The part at the end in which what grows must still be growing."""

Points = Sequence[tuple[float, float]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Growth:
    """level: where the measurement begins. per_day: growth that goes on; error: of it, one standard error.
    filled: what came on top and levels off. at_the_end: the growth per day in the last third, without its
    greatest single step."""

    level: float
    per_day: float
    error: float
    filled: float
    at_the_end: float

    @property
    def doubles_in_a_day(self) -> bool:
        """Whether it does so for sure, and goes on to the end: an allocator's step, or a cache that was
        filled, is no growth."""
        goes_on = self.at_the_end > self.per_day / 2
        return self.level > 0 and goes_on and self.per_day - _SURE * self.error > self.level


def growth(points: Points) -> Growth | None:
    """points: (seconds, value), evenly in time. None for fewer than 12 after the warm-up."""
    kept = points[int(len(points) * WARM_UP) :]
    if len(kept) < _FEWEST:
        return None
    seconds, values = _blocks(kept)
    best = _fitted(seconds, values, None)
    for share in _FILLS_IN:
        found = _fitted(seconds, values, share * (seconds[-1] - seconds[0]))
        if found.filled > 0 and found.left < best.left:
            best = found
    at_the_end = _steady(kept[int(len(kept) * (1 - _END)) :])
    return Growth(best.level, best.per_s * DAY_S, best.error * DAY_S, best.filled, at_the_end * DAY_S)


def curve(points: Points) -> list[float]:
    """The mean of each tenth of the points, the warm-up included: what fills up flattens, what leaks does
    not."""
    return [float(value) for value in _means([value for _, value in points], _TENTHS)]


@dataclass(frozen=True, slots=True)
class _Fit:
    """level + per_s * t + filled * (1 - exp(-t / some seconds)). left: sum of squares beside it."""

    level: float
    per_s: float
    filled: float
    error: float
    left: float


def _fitted(seconds: Floats, values: Floats, fills_in_s: float | None) -> _Fit:
    """By least squares. fills_in_s: None for the straight line alone."""
    t = seconds - seconds[0]
    columns = [np.ones_like(t), t]
    if fills_in_s is not None:
        columns.append(1 - np.exp(-t / fills_in_s))
    design = np.stack(columns, axis=1)
    scale = np.abs(design).max(axis=0)
    found, *_ = np.linalg.lstsq(design / scale, values, rcond=None)
    left = float(((values - design / scale @ found) ** 2).sum())
    spread = np.linalg.inv((design / scale).T @ (design / scale))
    error = math.sqrt(left / max(1, len(t) - len(scale)) * float(spread[1, 1])) / float(scale[1])
    found = found / scale
    filled = float(found[2]) if fills_in_s is not None else 0.0
    return _Fit(float(found[0]), float(found[1]), filled, error, left)


def _steady(points: Points) -> float:
    """Growth per second of these points without their greatest step, which an allocator may have made. A step
    within a tenth is part of two differences."""
    seconds, values = (_means(list(column), _TENTHS) for column in zip(*points, strict=True))
    rises = values[2:] - values[:-2]
    if len(rises) < 2:
        return 0.0
    took = float(seconds[-1] - seconds[0]) * (1 - 2 / (len(rises) + 1))
    return float(values[-1] - values[0] - rises.max()) / took


def _blocks(points: Points) -> tuple[Floats, Floats]:
    number = min(_BLOCKS, len(points))
    seconds, values = zip(*points, strict=True)
    return _means(seconds, number), _means(values, number)


def _means(values: Sequence[float], number: int) -> Floats:
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(number, len(values)))
    return np.array([part.mean() for part in parts])
