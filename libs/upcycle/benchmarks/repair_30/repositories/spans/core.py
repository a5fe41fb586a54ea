"""Spans: pairs (start, end) of numbers, the end not included. An empty span has start == end."""

Span = tuple[int, int]


def merge(spans: list[Span]) -> list[Span]:
    """The same numbers in as few spans as possible, in order; spans that touch become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def common(one: list[Span], other: list[Span]) -> list[Span]:
    """The numbers that are in both, as spans that are not empty."""
    found = []
    for start, end in merge(one):
        for begin, stop in merge(other):
            low, high = max(start, begin), min(end, stop)
            if low < high:
                found.append((low, high))
    return found
