"""What is measured, and the bar that each figure must hold."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.gate_study.candidates import (
    better_by,
    crashes,
    eroded,
    hangs,
    levels,
    loses_failures,
    one_family_lost,
    run_of_null,
)
from tests.gate_study.coverage import of_difference, of_rate
from tests.gate_study.population import Generator, seeded
from tests.gate_study.watching import rolled_back

from upcycle.gate.decision import Decision, Verdict
from upcycle.gate.rule import GateRule, looks_up_to

POPULATIONS: Final = ((0.225, 1.5), (0.5, 1.5), (0.9, 1.5), (0.5, 3.0), (0.9, 3.0))


@dataclass(frozen=True, slots=True)
class Bar:
    """low, high: what the share may be. errors: standard errors of the measurement granted above `high`."""

    low: float = 0.0
    high: float = 1.0
    errors: float = 0.0

    def holds(self, share: float, reps: int) -> bool:
        """Whether a measured share is within."""
        granted = self.errors * math.sqrt(self.high * (1 - self.high) / reps)
        return self.low <= share <= self.high + granted

    def text(self) -> str:
        """In the table; empty where the figure is only reported."""
        if (self.low, self.high) == (0.0, 1.0):
            return ""
        if self.low and self.high < 1:
            return f"{self.low:g} to {self.high:g}"
        return f"≥ {self.low:g}" if self.low else f"≤ {self.high:g}{' + 3 SE' if self.errors else ''}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure: the share of `reps` draws that are true (a decision: that promote)."""

    part: str
    title: str
    draw: Callable[[Generator], Decision | bool]
    reps: int
    bar: Bar = Bar()

    def measured(self, reps: int) -> tuple[float, float]:
        """The share, and the mean of attempts played of both sides where decisions are drawn (else 0)."""
        rng = seeded(f"{self.part}/{self.title}")
        drawn = [self.draw(rng) for _ in range(reps)]
        decisions = [one for one in drawn if isinstance(one, Decision)]
        true = sum(one is True for one in drawn) + sum(one.verdict is Verdict.PROMOTE for one in decisions)
        return true / reps, sum(one.played for one in decisions) / reps


ERROR: Final = Bar(high=0.05, errors=3)
NEVER: Final = Bar(high=0.0)


def cells() -> Iterator[Cell]:
    """All of them, in the order of the table."""
    yield from _false_promotions()
    yield from _powers()
    yield from _families()
    yield from _failures()
    yield from _coverage()
    yield from _watch()


def _false_promotions() -> Iterator[Cell]:
    part = "no gain, promoted"
    for mean in (0.1, 0.5, 0.9):
        for spread in (0.5, 1.5, 3.0):
            draw = better_by(0.0, mean=mean, spread=spread)
            yield Cell(part, f"head {mean:g}, tasks spread {spread:g}", draw, 1000, ERROR)
    for cap in (1, 2, 4, 8):
        draw = better_by(0.0, rule=GateRule(looks=looks_up_to(cap)))
        yield Cell(part, f"head 0.5, cap {cap}", draw, 1000, ERROR)
    yield Cell("2 points worse, promoted", "head 0.5", better_by(-0.02), 1000, Bar(high=0.01, errors=3))
    for mean in (0.5, 0.85):
        yield Cell(
            "run of 20 without a gain, any promoted", f"head {mean:g}", run_of_null(20, mean), 300, ERROR
        )


def _powers() -> Iterator[Cell]:
    part = "power, 120 tasks in 4 families, head 0.5"
    for gain, least in ((0.03, 0.45), (0.05, 0.80), (0.10, 0.99)):
        yield Cell(part, f"{100 * gain:+.0f} points at α .05", better_by(gain), 1000, Bar(low=least))
    for number in (1, 5, 10):
        for gain in (0.03, 0.05, 0.10):
            title = f"{100 * gain:+.0f} points, candidate {number} of a run (level {levels(number):.2g})"
            yield Cell(part, title, better_by(gain, level=levels(number)), 300)


def _families() -> Iterator[Cell]:
    for families, size, most in ((4, 30, 0.03), (10, 12, 0.10), (20, 6, 0.30)):
        part = f"{families} families of {size} tasks"
        for mean in (0.5, 0.8):
            for loss, bar in ((0.10, Bar()), (0.20, Bar(high=most)), (0.30, Bar(high=0.05))):
                draw = one_family_lost(loss, families=families, mean=mean)
                title = f"one family −{100 * loss:.0f}, others +8, head {mean:g}, promoted"
                yield Cell(part, title, draw, 600, bar)
    for families, least in ((4, 0.80), (10, 0.80), (20, 0.65)):
        draw = better_by(0.05, families=families, mean=0.7)
        part = f"{families} families of {120 // families} tasks"
        yield Cell(part, "power at +5 in every family from .70", draw, 1000, Bar(low=least))
    for families in (4, 10):
        for remembers, how in ((False, "the last head alone"), (True, "the best head so far")):
            title = (
                f"5 candidates −6 in one family, +8 elsewhere: 12 points lower at the end, margin to {how}"
            )
            yield Cell(
                f"{families} families of {120 // families} tasks", title, _Erosion(families, remembers), 200
            )


@dataclass(frozen=True, slots=True)
class _Erosion:
    families: int
    remembers: bool

    def __call__(self, rng: Generator) -> bool:
        return eroded(rng, families=self.families, remembers=self.remembers)


def _failures() -> Iterator[Cell]:
    part = "failing candidates, promoted"
    truths = ((0.3, "−1"), (0.45, "−12"), (0.6, "−22"), (0.7, "−29"), (0.8, "−36"))
    for share, truth in truths:
        title = f"+20 points, crashes in {share:.0%} of attempts (truth {truth} points)"
        yield Cell(part, title, crashes(share), 400, ERROR if share == 0.3 else NEVER)
    for gain, truth in ((0.05, "about −4"), (0.08, "about −1")):
        title = f"{100 * gain:+.0f} points, hangs at a tenth of the tasks (truth {truth})"
        yield Cell(part, title, hangs(gain), 400, ERROR)
    for share, gain in ((0.2, -0.05), (0.5, 0.0), (0.9, -0.05)):
        title = f"{100 * gain:+.0f} points, {share:.0%} of its failed attempts lost to infrastructure"
        yield Cell(part, title, loses_failures(share, gain), 400, NEVER if gain else ERROR)


def _coverage() -> Iterator[Cell]:
    for tasks, several in ((120, (1, 2, 4, 8, 16)), (50, (8,)), (30, (16,))):
        for attempts in several:
            for mean, spread in POPULATIONS:
                title = f"{tasks} tasks of {attempts}, success {mean:g}, spread {spread:g}"
                draw = of_rate(tasks, attempts, mean, spread)
                yield Cell("95 % interval of a rate holds it", title, draw, 3000, Bar(0.93, 0.97))
    for attempts in (1, 2, 4, 8, 16):
        for mean, gain in ((0.5, 0.0), (0.5, 0.05), (0.9, 0.05)):
            title = f"120 tasks of {attempts}, from {mean:g}, {100 * gain:+.0f} points"
            draw = of_difference(120, attempts, mean, gain)
            yield Cell("95 % interval of a difference holds it", title, draw, 2000, Bar(0.93, 0.97))


def _watch() -> Iterator[Cell]:
    part = "watch, rolled back"
    for mean in (0.5, 0.85):
        draw = rolled_back(0.0, mean=mean, pairs=5000, scatter=0.0)
        yield Cell(part, f"equal head, success {mean:g}, within 5,000 pairs", draw, 1000, Bar(high=0.01))
    for mean, pairs in ((0.5, 1000), (0.85, 600)):
        draw = rolled_back(0.10, mean=mean, pairs=pairs)
        yield Cell(part, f"−10 points at {mean:g}, within {pairs:,} pairs", draw, 1000, Bar(low=0.95))
    for loss in (0.05, 0.20):
        draw = rolled_back(loss, mean=0.5, pairs=1000)
        yield Cell(part, f"−{100 * loss:.0f} points at 0.5, within 1,000 pairs", draw, 200)
