"""How often a batch was begun: what tells a batch that kills the process from a machine that goes away."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

MAX_KILLED: Final = 2
"""Starts of one batch that ended with the process before the batch is taken as one that does not fit."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The newest batch of a run. batch: digest of its group ids. starts: how often a process began to compute
    it, departures on notice left out. done: it was computed."""

    step: int
    batch: str
    starts: int
    done: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def left(self) -> Attempt:
        """The process leaves on notice: this start does not count."""
        return replace(self, starts=self.starts - 1)


def attempt_from_json(plain: Mapping[str, Any]) -> Attempt:
    """The attempt that `to_json` described. Raises ValueError, KeyError, TypeError."""
    return Attempt(int(plain["step"]), str(plain["batch"]), int(plain["starts"]), bool(plain["done"]))


def next_attempt(before: Attempt | None, step: int, group_ids: Iterable[str]) -> Attempt:
    """The attempt that begins now. before: the recorded one, if there is one."""
    batch = hashlib.sha256("\n".join(group_ids).encode()).hexdigest()[:16]
    same = before is not None and (before.step, before.batch, before.done) == (step, batch, False)
    return Attempt(step, batch, 1 + (before.starts if same and before is not None else 0))
