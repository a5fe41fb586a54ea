"""Some of many, evenly apart."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def evenly(items: Sequence[T], max_count: int) -> list[T]:
    """At most so many of them, evenly apart: the first ones may be all of one family."""
    count = min(max_count, len(items))
    return [items[at * len(items) // count] for at in range(count)]
