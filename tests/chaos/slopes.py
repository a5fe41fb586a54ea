"""Does it grow? A straight line by least squares through what was measured, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DAY_S: Final = 86_400.0
WARM_UP: Final = 1 / 3
"""Share of the points, the first ones, that is left out: caches fill, imports happen."""
_SURE: Final = 3.0
"""Standard errors that a slope must lie above the limit."""
_FEWEST: Final = 8


_TENTHS: Final = 10


@dataclass(frozen=True, slots=True)
class Slope:
    """level: of the line where the measurement begins. per_day: growth; error: of it, one standard error."""

    level: float
    per_day: float
    error: float

    @property
    def doubles_in_a_day(self) -> bool:
        """Whether it does so for sure: the slope less three standard errors is more than the level."""
        return self.level > 0 and self.per_day - _SURE * self.error > self.level


def slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    """points: (seconds, value). None for fewer than 8 points after the warm-up."""
    kept = points[int(len(points) * WARM_UP) :]
    if len(kept) < _FEWEST:
        return None
    mean_t = math.fsum(t for t, _ in kept) / len(kept)
    mean_v = math.fsum(v for _, v in kept) / len(kept)
    spread = math.fsum((t - mean_t) ** 2 for t, _ in kept)
    per_s = math.fsum((t - mean_t) * (v - mean_v) for t, v in kept) / spread
    left = math.fsum((v - mean_v - per_s * (t - mean_t)) ** 2 for t, v in kept)
    error = math.sqrt(left / (len(kept) - 2) / spread)
    return Slope(mean_v + per_s * (kept[0][0] - mean_t), per_s * DAY_S, error * DAY_S)


def curve(points: Sequence[tuple[float, float]]) -> list[float]:
    """The mean of each tenth of the points, the warm-up included: what fills up flattens, what leaks does
    not."""
    size = len(points) / _TENTHS
    tenths = (points[int(size * part) : int(size * (part + 1))] for part in range(_TENTHS))
    return [math.fsum(value for _, value in tenth) / len(tenth) for tenth in tenths if tenth]
