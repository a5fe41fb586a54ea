"""Busy and free time of a day."""

from spans.core import Span, merge


def free(busy: list[Span], start: int, end: int) -> list[Span]:
    """The gaps between busy spans, from start to end."""
    gaps = []
    at = start
    for begin, stop in merge(busy):
        if begin >= end:
            break
        if begin > at:
            gaps.append((at, begin))
        at = max(at, stop)
    if at < end:
        gaps.append((at, end))
    return gaps


def busiest(spans: list[Span]) -> int:
    """How many spans overlap at most; one that ends where another starts does not overlap it."""
    events = []
    for start, end in spans:
        events.append((start, 1))
        events.append((end, -1))
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most
