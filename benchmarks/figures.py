"""A measured figure: its samples, and what it is held against."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Peer:
    """Something else, measured in the same run. ratio: ours to theirs, above 1 where ours is better."""

    name: str
    value: float
    unit: str
    ratio: float

    def __str__(self) -> str:
        return f"{number(self.ratio)}× of {self.name} ({number(self.value)} {self.unit})"


@dataclass(frozen=True, slots=True)
class Limit:
    """What was promised. at_most: the figure must not exceed it; otherwise it must reach it. of_ratio: the
    promise is about the ratio to the peer."""

    value: float
    unit: str
    at_most: bool
    of_ratio: bool = False

    def __str__(self) -> str:
        return f"limit {'≤' if self.at_most else '≥'} {number(self.value)}{self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. samples: repetitions of the same measurement; the figure is their median."""

    name: str
    unit: str
    samples: tuple[float, ...]
    peer: Peer | None = None
    limit: Limit | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The median."""
        return float(statistics.median(self.samples))

    @property
    def spread(self) -> str:
        """Smallest to largest sample."""
        if len(self.samples) < 2:
            return "one sample"
        return f"{number(min(self.samples))}–{number(max(self.samples))} of {len(self.samples)}"

    @property
    def met(self) -> bool | None:
        """Whether the limit is kept; None without one."""
        if self.limit is None:
            return None
        value = self.peer.ratio if self.limit.of_ratio and self.peer is not None else self.value
        return value <= self.limit.value if self.limit.at_most else value >= self.limit.value

    @property
    def against(self) -> str:
        """Peer, limit and note in words."""
        kept = {None: "", True: " (kept)", False: " (MISSED)"}[self.met]
        parts = [str(self.peer) if self.peer else "", f"{self.limit}{kept}" if self.limit else "", self.note]
        return "; ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """For results/*.json."""
        return {**asdict(self), "value": self.value, "met": self.met}


def against(peer: str, ours: Sequence[float], theirs: Sequence[float], unit: str) -> Peer:
    """A peer where more is better."""
    value = float(statistics.median(theirs))
    return Peer(peer, value, unit, float(statistics.median(ours)) / value)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` per cent of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -(-int(len(ordered) * percent) // 100) - 1)]


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
