"""The set of settled groups of one run: grows for the whole run, stays small."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

_NUMBERED = re.compile(r"^(?P<stem>.*-g)(?P<index>\d{1,9})$")


class SettledGroups:
    """Group ids `<run>-g<index>` are kept as ranges of indexes, all others by name.

    Groups settle nearly in order, so ten thousand steps are a few ranges, and a group can be recognised for
    as long as the run lives, however late a repeated fact about it comes.
    """

    def __init__(self, run_id: str) -> None:
        self._stem = f"{run_id}-g"
        self._ranges: list[list[int]] = []
        self._others: set[str] = set()

    def add(self, group_id: str) -> None:
        """Remember a group; adding it again changes nothing."""
        index = self._index(group_id)
        if index is None:
            self._others.add(group_id)
        elif group_id not in self:
            self._insert(index)

    def __contains__(self, group_id: str) -> bool:
        index = self._index(group_id)
        if index is None:
            return group_id in self._others
        at = bisect_right(self._ranges, index, key=lambda pair: pair[0]) - 1
        return at >= 0 and index <= self._ranges[at][1]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._ranges) + len(self._others)

    def _index(self, group_id: str) -> int | None:
        found = _NUMBERED.match(group_id)
        return int(found["index"]) if found and found["stem"] == self._stem else None

    def _insert(self, index: int) -> None:
        at = bisect_right(self._ranges, index, key=lambda pair: pair[0])
        joins_left = at > 0 and self._ranges[at - 1][1] == index - 1
        joins_right = at < len(self._ranges) and self._ranges[at][0] == index + 1
        if joins_left and joins_right:
            self._ranges[at - 1][1] = self._ranges.pop(at)[1]
        elif joins_left:
            self._ranges[at - 1][1] = index
        elif joins_right:
            self._ranges[at][0] = index
        else:
            self._ranges.insert(at, [index, index])

    def to_json(self) -> dict[str, Any]:
        """Plain values for the training state."""
        return {"ranges": [list(pair) for pair in self._ranges], "others": sorted(self._others)}

    @classmethod
    def from_json(cls, run_id: str, plain: dict[str, Sequence[Any]]) -> SettledGroups:
        """The set that `to_json` described."""
        settled = cls(run_id)
        settled._ranges = [[int(first), int(last)] for first, last in plain["ranges"]]
        settled._others = set(map(str, plain["others"]))
        return settled

    def update(self, group_ids: Iterable[str]) -> None:
        """Add several."""
        for group_id in group_ids:
            self.add(group_id)
