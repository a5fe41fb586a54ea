"""Training runs on several tasksets: how a share is written, and which taskset gives the next group. Pure;
planner and CLI read it here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_MIXED: Final = re.compile(r"(?P<taskset>[^:\s]+):share=(?P<share>[^:\s]+)")
_SHARE: Final = re.compile(r"[0-9]{0,9}\.?[0-9]{1,9}|[0-9]{1,9}/[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class MixedTaskset:
    """A taskset, and its share of the groups that a run plays."""

    taskset: str
    share: Fraction


def parse_mixed(text: str) -> MixedTaskset:
    """`TASKSET:share=0.3`, or `TASKSET:share=1/3`. Raises ValueError."""
    match = _MIXED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not TASKSET:share=SHARE")
    return MixedTaskset(match["taskset"], _share(match["share"], match["taskset"]))


def _share(text: str, taskset: str) -> Fraction:
    is_number = _SHARE.fullmatch(text) is not None and set(text.partition("/")[2]) != {"0"}
    share = Fraction(text) if is_number else Fraction(0)
    if not 0 < share <= 1:
        raise ValueError(
            f"the share of {taskset!r:.80} must be above 0 and at most 1, such as 0.3 or 1/3, got {text:.20}"
        )
    return share


def with_own(taskset: str, mix: Sequence[str]) -> tuple[MixedTaskset, ...]:
    """All tasksets of a run with their shares, which add up to 1: its own one first, with what the others
    leave. Raises ValueError."""
    others = tuple(map(parse_mixed, mix))
    left = 1 - sum((one.share for one in others), Fraction(0))
    if left <= 0:
        raise ValueError(
            f"the shares add up to {shown(1 - left)}, which leaves nothing for the taskset of the run, "
            f"{taskset!r:.80}: together they must be below 1"
        )
    return (MixedTaskset(taskset, left), *others)


def next_taskset(shares: Sequence[Fraction], counts: Sequence[int]) -> int:
    """Which taskset the next group is of: the one that is furthest behind its share, the first of equal ones.

    counts: groups of each until now. So no taskset is ever a whole group ahead of its share.
    """
    num = sum(counts) + 1
    behind = [share * num - count for share, count in zip(shares, counts, strict=True)]
    return behind.index(max(behind))


def shown(share: Fraction) -> str:
    """A share as people read it: `0.3`, `0.333`."""
    return f"{float(share):.3g}"
