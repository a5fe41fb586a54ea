"""The record of a batch's starts: it tells a batch that kills the process from a machine that was
preempted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter

MAX_KILLED: Final = 2
"""Starts of one batch that ended with the process before the batch is taken as one that does not fit."""
_MAX_OTHERS: Final = 8


@dataclass(frozen=True, slots=True)
class Attempt:
    """The newest batch of a run. batch: digest of its group ids. starts: how often a process began to compute
    it; starts that were stopped on notice are not counted. done: it was computed.

    others: later batches that were begun and not computed. After a kill in step 2 the process may have to
    compute step 1 again first; the starts of step 2 must not be forgotten then.
    """

    step: int
    batch: str
    starts: int
    done: bool = False
    others: tuple[Attempt, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def left(self, starts: int = 1) -> Attempt:
        """The process was stopped on notice, or lives: these starts do not count."""
        return replace(self, starts=self.starts - starts)


_ATTEMPTS: Final = TypeAdapter(Attempt)


def attempt_from_json(plain: Mapping[str, Any]) -> Attempt:
    """The attempt that `to_json` described. Raises ValueError."""
    return _ATTEMPTS.validate_python(plain)


def next_attempt(before: Attempt | None, step: int, group_ids: Iterable[str]) -> Attempt:
    """The attempt that begins now. before: the recorded one, if there is one."""
    batch = hashlib.sha256("\n".join(group_ids).encode()).hexdigest()[:16]
    recorded = () if before is None else (replace(before, others=()), *before.others)
    begun = [one for one in recorded if not one.done]
    starts = sum(one.starts for one in begun if (one.step, one.batch) == (step, batch))
    others = [one for one in begun if one.step >= step and (one.step, one.batch) != (step, batch)]
    return Attempt(step, batch, 1 + starts, others=tuple(others[:_MAX_OTHERS]))
