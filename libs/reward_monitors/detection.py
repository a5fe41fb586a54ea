"""When a rate is too high: one detector for every monitor that counts events.

Page's CUSUM on the likelihood ratio of Bernoulli(worse) to Bernoulli(tolerated). While the true rate is at
most `tolerated`, the mean number of observations to a false alarm is at least `run_length` (Lorden, 1971),
however often it is looked at; so looking after every episode needs no correction. Its memory is one
number.
"""

import math
from dataclasses import dataclass, field
from typing import Final

RUN_LENGTH: Final = 10_000.0
"""Observations to a false alarm, in the mean, at the rate that is tolerated."""
BASELINE: Final = 96
"""First observations of a run, of which a monitor learns what is usual."""
FLOOR: Final = 0.02
"""A rate up to which nothing is said, whatever was usual."""
_MARGIN: Final = 0.2
_SIGMAS: Final = 3.0


@dataclass(slots=True)
class RateDetector:
    """tolerated, worse: rates, 0 < tolerated < worse < 1. evidence: log of the CUSUM's ratio, at least 0.
    is_raised: from when the evidence reached the threshold until it is used up."""

    tolerated: float = FLOOR
    worse: float = FLOOR + _MARGIN
    run_length: float = RUN_LENGTH
    evidence: float = 0.0
    is_raised: bool = False
    hits: int = 0
    seen: int = 0

    def add(self, hit: bool) -> bool:
        """Count one observation; returns whether the alarm is raised now."""
        self.seen += 1
        self.hits += hit
        hit_ratio, miss_ratio = self.worse / self.tolerated, (1 - self.worse) / (1 - self.tolerated)
        # Bounded, so that an alarm of long standing clears as soon as a young one.
        limit = 2 * math.log(self.run_length)
        self.evidence = min(limit, max(0.0, self.evidence + math.log(hit_ratio if hit else miss_ratio)))
        if self.evidence >= math.log(self.run_length):
            self.is_raised = True
        elif self.evidence == 0.0:
            self.is_raised = False
        return self.is_raised


@dataclass(slots=True)
class LearnedRate:
    """A detector whose tolerated rate is what the first BASELINE observations of the run showed, plus three
    standard errors, at least FLOOR. It raises nothing before they are in."""

    num: int = 0
    hits: int = 0
    detector: RateDetector | None = None
    baseline: int = BASELINE

    def add(self, hit: bool) -> bool:
        """Count one observation; returns whether the alarm is raised now."""
        if self.detector is None:
            self.num, self.hits = self.num + 1, self.hits + hit
            if self.num >= self.baseline:
                self.detector = _beyond(self.hits, self.num)
            return False
        return self.detector.add(hit)

    @property
    def is_raised(self) -> bool:
        """Whether the alarm is raised."""
        return self.detector is not None and self.detector.is_raised


def _beyond(hits: int, num: int) -> RateDetector:
    # Agresti-Coull: an error of a rate that was never seen is not 0.
    rate = (hits + 2) / (num + 4)
    usual = hits / num + _SIGMAS * math.sqrt(rate * (1 - rate) / num)
    tolerated = min(max(FLOOR, usual), 0.75)
    return RateDetector(tolerated, tolerated + _MARGIN)


@dataclass(slots=True)
class RecentRate:
    """The share of hits among the newest observations, for the text of an alarm. bits: newest last."""

    bits: list[bool] = field(default_factory=list)
    width: int = 64

    def add(self, hit: bool) -> None:
        """Count one observation; beyond `width`, the oldest is forgotten."""
        self.bits = [*self.bits[-(self.width - 1) :], hit]

    @property
    def rate(self) -> float:
        """0..1; 0 where nothing was seen."""
        return sum(self.bits) / len(self.bits) if self.bits else 0.0
