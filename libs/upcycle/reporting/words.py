"""Estimates as people read them, in a terminal and on a page."""

from upcycle.statistics.intervals import Estimate


def percent(estimate: Estimate) -> str:
    """`62.5% [48.1, 75.0]`."""
    ends = estimate.interval
    shown = f" [{100 * ends.low:.1f}, {100 * ends.high:.1f}]" if ends is not None else ""
    return f"{estimate.value:.1%}{shown}"


def number(estimate: Estimate | None, sign: str = "") -> str:
    """`0.713 [0.650, 0.780]`; – where there is none."""
    if estimate is None:
        return "–"
    ends = estimate.interval
    shown = f" [{ends.low:{sign}.3f}, {ends.high:{sign}.3f}]" if ends is not None else ""
    return f"{estimate.value:{sign}.3f}{shown}"
