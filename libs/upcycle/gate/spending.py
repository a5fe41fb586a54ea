"""How error is spent: over the looks at one candidate, and over the candidates of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from upcycle.gate.errors import BadGateRule

_NODES: Final = 81  # of the grid on which the sequence of looks is integrated
_WIDTH: Final = 6.0  # standard deviations on each side
_HALVINGS: Final = 40
SPENDING_POWER: Final = 1.0


@lru_cache(maxsize=1024)
def look_levels(level: float, looks: tuple[int, ...]) -> tuple[float, ...]:
    """The one-sided nominal level of each look, so that a candidate without a gain passes at any of them with
    `level`.

    Lan and DeMets (1983) with the power family of Kim and DeMets (1987): by the look at a share t of all
    attempts, level * t ** SPENDING_POWER is spent. The boundaries come from the recursive integration of
    Armitage, McPherson and Rowe (1969).
    """
    spent = [level * (look / looks[-1]) ** SPENDING_POWER for look in looks]
    increments = [spent[0], *(later - sooner for sooner, later in pairwise(spent))]
    grid = _Grid()
    nominal = []
    for at, increment in enumerate(increments):
        gain = looks[at] - (looks[at - 1] if at else 0)
        bound = grid.bound(gain, increment)
        nominal.append(_upper_tail(bound / math.sqrt(looks[at])))
        grid = grid.went_on(gain, bound)
    return tuple(nominal)


class _Grid:
    """Where the score of a candidate without a gain may be, of those that passed at no look so far."""

    def __init__(self, points: Sequence[float] = (0.0,), mass: Sequence[float] = (1.0,)) -> None:
        self._points, self._mass = points, mass

    def bound(self, gain: float, probability: float) -> float:
        """The score that is passed with this probability after `gain` more units of information."""
        low, high = 0.0, max(self._points) + 12 * math.sqrt(gain) + 1
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._above(middle, gain) > probability else (low, middle)
        return high

    def went_on(self, gain: float, bound: float) -> "_Grid":
        """After the look, of those that stayed below the bound."""
        scale = math.sqrt(gain)
        low = min(self._points) - _WIDTH * scale
        step = (bound - low) / (_NODES - 1)
        points = [low + step * at for at in range(_NODES)]
        weights = [step * (1 if at % (_NODES - 1) == 0 else 4 if at % 2 else 2) / 3 for at in range(_NODES)]
        mass = [
            weight
            * math.fsum(
                m * math.exp(-(((to - at) / scale) ** 2) / 2)
                for at, m in zip(self._points, self._mass, strict=True)
            )
            / (scale * math.sqrt(2 * math.pi))
            for to, weight in zip(points, weights, strict=True)
        ]
        return _Grid(points, mass)

    def _above(self, bound: float, gain: float) -> float:
        scale = math.sqrt(gain)
        return math.fsum(
            m * _upper_tail((bound - at) / scale) for at, m in zip(self._points, self._mass, strict=True)
        )


def _upper_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


@dataclass(frozen=True, slots=True)
class AlphaWealth:
    """The error of a run, spent over its candidates by LORD++ (Ramdas, Yang, Wainwright and Jordan 2017).

    A promotion earns error back. Over candidates none of which is better, the levels add up to at most
    `alpha` * `start`, however many there are. tested: candidates of the run that were judged at a level,
    whatever the verdict; those superseded before the first look are none. promoted: which of them were
    promoted, counted from 1, in order.
    """

    alpha: float = 0.05
    tested: int = 0
    promoted: tuple[int, ...] = ()
    start: float = 0.5

    def __post_init__(self) -> None:
        if list(self.promoted) != sorted(set(self.promoted)) or any(
            not 1 <= one <= self.tested for one in self.promoted
        ):
            raise BadGateRule(
                f"promoted is {self.promoted} of {self.tested} candidates; count from 1 and rise"
            )

    @property
    def next_level(self) -> float:
        """The level of the next candidate."""
        at = self.tested + 1
        wealth = self.alpha * self.start * _share(at)
        if self.promoted:
            wealth += self.alpha * (1 - self.start) * _share(at - self.promoted[0])
        wealth += self.alpha * math.fsum(_share(at - one) for one in self.promoted[1:])
        return wealth

    def after(self, *, promoted: bool) -> "AlphaWealth":
        """The state after one more candidate was judged."""
        at = self.tested + 1
        return AlphaWealth(self.alpha, at, (*self.promoted, at) if promoted else self.promoted, self.start)


_DECAY: Final = 1.6
_TOTAL: Final = 2.2857657  # Riemann's zeta of _DECAY, rounded up: the shares add up to 1 at most


def _share(age: int) -> float:
    """Of the error that one event earned, what is spent `age` candidates later."""
    return math.pow(age, -_DECAY) / _TOTAL
