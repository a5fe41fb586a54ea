"""The set of settled groups of one run: grows for the whole run, stays small."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from identities.entities import parse_group_id

Ranges = list[list[int]]
"""First and last index of each range, in order, with gaps between them."""


class SettledGroups:
    """Group ids that the planner numbered are kept as ranges of positions per run, all others by name.

    Groups settle nearly in order, those of the run and those of each evaluation that it draws from, so ten
    thousand steps are a few ranges, and a group can be recognised for as long as the run lives, however late
    a repeated fact about it comes.
    """

    def __init__(self, run_id: str) -> None:
        self._own = run_id
        self._ranges: dict[str, Ranges] = {self._own: []}
        self._others: set[str] = set()

    def add(self, group_id: str) -> None:
        """Remember a group; adding it again changes nothing."""
        numbered = parse_group_id(group_id)
        if numbered is None:
            self._others.add(group_id)
        elif group_id not in self:
            _insert(self._ranges.setdefault(numbered.run_id, []), numbered.position)

    def __contains__(self, group_id: str) -> bool:
        numbered = parse_group_id(group_id)
        if numbered is None:
            return group_id in self._others
        run_id, index = numbered
        ranges = self._ranges.get(run_id, [])
        at = bisect_right(ranges, index, key=lambda pair: pair[0]) - 1
        return at >= 0 and index <= ranges[at][1]

    def __len__(self) -> int:
        numbered = sum(last - first + 1 for ranges in self._ranges.values() for first, last in ranges)
        return numbered + len(self._others)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the training state. sources: ranges of other runs, where there are any."""
        plain: dict[str, Any] = {"ranges": _copied(self._ranges[self._own]), "others": sorted(self._others)}
        sources = {run: _copied(self._ranges[run]) for run in sorted(self._ranges) if run != self._own}
        return {**plain, "sources": sources} if sources else plain

    @classmethod
    def from_json(cls, run_id: str, plain: Mapping[str, Any]) -> SettledGroups:
        """The set that `to_json` described."""
        settled = cls(run_id)
        settled._ranges[settled._own] = _copied(plain["ranges"])
        settled._ranges |= {str(run): _copied(found) for run, found in plain.get("sources", {}).items()}
        settled.update(map(str, plain["others"]))
        return settled

    def update(self, group_ids: Iterable[str]) -> None:
        """Add several."""
        for group_id in group_ids:
            self.add(group_id)


def _insert(ranges: Ranges, index: int) -> None:
    at = bisect_right(ranges, index, key=lambda pair: pair[0])
    joins_left = at > 0 and ranges[at - 1][1] == index - 1
    joins_right = at < len(ranges) and ranges[at][0] == index + 1
    if joins_left and joins_right:
        ranges[at - 1][1] = ranges.pop(at)[1]
    elif joins_left:
        ranges[at - 1][1] = index
    elif joins_right:
        ranges[at][0] = index
    else:
        ranges.insert(at, [index, index])


def _copied(ranges: Iterable[Sequence[int]]) -> Ranges:
    return [[int(first), int(last)] for first, last in ranges]
