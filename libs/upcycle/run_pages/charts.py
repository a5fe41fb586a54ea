"""Curves of a training run as coordinates, which a template draws as SVG."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.run_pages.values import GateVerdict, Step

WIDTH, HEIGHT = 320.0, 120.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 8.0, 8.0, 18.0
MAX_POINTS: Final = 400
"""More are averaged: a curve is 268 units wide."""
METRICS: Final = (
    ("reward", "reward_mean", ".3f"),
    ("success", "success_rate", ".1%"),
    ("gradient norm", "grad_norm", ".3g"),
    ("KL of engine and trainer", "mismatch_kl", ".2e"),
    ("entropy", "entropy", ".3f"),
    ("clip fraction", "clip_fraction", ".1%"),
    ("loss", "loss", ".3g"),
    ("learning rate", "learning_rate", ".2e"),
)
"""What is drawn where it was measured: name, metric, format."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve over the steps. line: `x,y x,y …`; dots: its points, where they are few."""

    name: str
    line: str
    dots: tuple[tuple[float, float], ...]
    low: str
    high: str
    last: str
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class GainMark:
    """A verdict on a line of gains: where its gain and its lower bound lie."""

    y: float
    gain_x: float
    bound_x: float
    verdict: GateVerdict


@dataclass(frozen=True, slots=True)
class GainChart:
    """Gains of all verdicts, one below the other. zero_x: where a gain of 0 lies."""

    height: float
    zero_x: float
    low: str
    high: str
    marks: tuple[GainMark, ...]


def charts_of(steps: Sequence[Step]) -> tuple[Chart, ...]:
    """One chart for everything that was measured at two steps or more."""
    series = [(name, form, _measured(steps, metric)) for name, metric, form in METRICS]
    ages = [(one.step, one.staleness) for one in steps if one.staleness is not None]
    series.append(("staleness in versions", ".2f", ages))
    versions = [(one.step, float(one.version)) for one in steps if one.version is not None]
    series.append(("version", ".0f", versions))
    finite = [(name, form, [at for at in points if math.isfinite(at[1])]) for name, form, points in series]
    return tuple(_chart(name, form, points) for name, form, points in finite if len(points) > 1)


def _measured(steps: Iterable[Step], metric: str) -> list[tuple[int, float]]:
    return [(one.step, one.values[metric]) for one in steps if metric in one.values]


def _chart(name: str, form: str, points: Sequence[tuple[int, float]]) -> Chart:
    drawn = _thinned(points)
    low, high = (end(value for _, value in drawn) for end in (min, max))
    first, last = drawn[0][0], drawn[-1][0]
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    places = [
        (
            LEFT + width * (step - first) / max(1.0, last - first),
            TOP + height * (0.5 if high == low else (high - value) / (high - low)),
        )
        for step, value in drawn
    ]
    return Chart(
        name=name,
        line=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        dots=tuple((round(x, 1), round(y, 1)) for x, y in places) if len(places) <= 40 else (),
        low=format(low, form),
        high=format(high, form),
        last=format(points[-1][1], form),
        first_step=points[0][0],
        last_step=points[-1][0],
    )


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS, each the mean of as many neighbours."""
    size = -(-len(points) // MAX_POINTS)
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(_mean(step for step, _ in part), _mean(value for _, value in part)) for part in parts]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def gains_of(verdicts: Iterable[GateVerdict]) -> GainChart | None:
    """None where no gate measured anything."""
    judged = [one for one in verdicts if one.gain is not None and one.lower_bound is not None]
    ends = [end for one in judged for end in (one.gain, one.lower_bound) if end is not None]
    if not judged or not all(map(math.isfinite, ends)):
        return None
    low, high = min(0.0, *ends), max(0.0, *ends)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 24) * (value - low) / span, 1)

    marks = tuple(
        GainMark(16.0 + 18 * at, place(one.gain or 0.0), place(one.lower_bound or 0.0), one)
        for at, one in enumerate(judged)
    )
    return GainChart(
        16.0 + 18 * len(judged) + 14, place(0.0), f"{100 * low:+.1f}", f"{100 * high:+.1f}", marks
    )
