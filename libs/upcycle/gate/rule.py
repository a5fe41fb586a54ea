"""What a candidate must show, and how often it may be looked at."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from upcycle.gate.errors import BadGateRule

LOOKS: Final = (2, 4, 8, 16)
MAX_ATTEMPTS: Final = 64


@dataclass(frozen=True, slots=True)
class CriticalFamily:
    """A family that must be proven on its own: without what the others gained, at the full level.

    margin: the loss against the best head so far that is allowed, a success-rate difference. attempts: per
    task and side before it counts as not proven, at least the cap of the others to be of use.
    """

    margin: float = 0.05
    attempts: int = LOOKS[-1]


@dataclass(frozen=True, slots=True)
class GateRule:
    """Rates and margins are success-rate differences, 0..1.

    looks: attempts per task and side at which the gain is tested; the last is the cap.
    """

    alpha: float = 0.05  # of the run: `AlphaWealth` spends it over its candidates
    looks: tuple[int, ...] = LOOKS
    min_gain: float = 0.0
    regression_margin: float = 0.05
    critical: Mapping[str, CriticalFamily] = field(default_factory=dict)
    futility_gain: float = 0.01  # a candidate whose gain is below this beyond chance is not played on

    def __post_init__(self) -> None:
        _within("alpha", self.alpha, 0.0005, 0.5)
        _within("min_gain", self.min_gain, 0, 0.9)
        _within("regression_margin", self.regression_margin, 0.001, 1)
        if not self.looks or list(self.looks) != sorted(set(self.looks)) or self.looks[0] < 1:
            raise BadGateRule(f"looks is {self.looks}; use attempts that rise, such as {LOOKS}")
        if self.cap > MAX_ATTEMPTS:
            raise BadGateRule(f"the last look is {self.cap} attempts; the limit is {MAX_ATTEMPTS}")
        for name, critical in self.critical.items():
            _within(f"critical family {name!r}: margin", critical.margin, 0.001, 1)
            if not self.looks[0] <= critical.attempts <= MAX_ATTEMPTS:
                raise BadGateRule(
                    f"critical family {name!r}: attempts is {critical.attempts}; "
                    f"use {self.looks[0]} (the first look) to {MAX_ATTEMPTS}"
                )

    @property
    def cap(self) -> int:
        """Attempts per task and side at most, critical families apart."""
        return self.looks[-1]

    def margin(self, family: str) -> float:
        """The loss that this family may show."""
        return self.critical[family].margin if family in self.critical else self.regression_margin

    def attempts(self, family: str) -> int:
        """The most attempts per task and side of this family."""
        return self.critical[family].attempts if family in self.critical else self.cap

    def check_families(self, families: Iterable[str]) -> None:
        """Raises BadGateRule for a critical family that the held-out set does not have."""
        known = sorted(set(families))
        for name in self.critical:
            if name not in known:
                raise BadGateRule(
                    f"critical family {name!r} is not in the held-out set; it has {', '.join(known)}"
                )


def looks_up_to(cap: int) -> tuple[int, ...]:
    """The default looks that fit under a cap, which is itself the last: 2, 4, 6 for 6. Raises BadGateRule
    below 1."""
    if cap < 1:
        raise BadGateRule(f"a cap of {cap} attempts plays nothing; use 1 to {MAX_ATTEMPTS}")
    return (*(look for look in LOOKS if look < cap), cap)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadGateRule(f"{name} is {value:g}; use {low:g} to {high:g}")
