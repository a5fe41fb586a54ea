"""A sweep looks at one batch of what is old enough, oldest first, and says what goes, or removes it."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from service_kit.errors import InvalidRequest

MIN_AGE: Final = timedelta(days=1)
"""Nothing younger is removed: a fact that refers to it may still be on its way."""
MAX_RUNS: Final = 2000
"""Runs that one call about references may name."""
KEPT_FOR_EVER: Final = "kept for ever"
_MAX_AGE: Final = timedelta(days=36500)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SweepOrder:
    """apply: remove, instead of only saying what would go. older_than: instead of the setting. after: the
    `next` of the report before; empty begins with the oldest."""

    apply: bool = False
    older_than: timedelta | None = None
    after: str = ""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """One batch. number, size_bytes, oldest: of what would go, or was removed. kept: what is old enough and
    stays, by reason. next: where the next batch begins; empty: this was the last."""

    policy: str
    number: int = 0
    size_bytes: int = 0
    oldest: datetime | None = None
    kept: Mapping[str, int] = field(default_factory=dict)
    next: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A run that is needed, and why. only_trained: of it, only the trajectories that it trained on."""

    run_id: str
    why: str
    only_trained: bool = False


class References(Protocol):
    """Who refers to runs: other services, or a double."""

    async def to_runs(self, runs: Mapping[str, str], *, release: bool) -> Sequence[Reference]:
        """Those that are needed, of runs by id, each with its model or "". release: no other will be needed
        from now on. Raises Unavailable."""


class RetentionSweep(Protocol):
    """What one kind of thing needs to be swept."""

    async def __call__(self, order: SweepOrder) -> SweepReport:
        """Bounded, and safe to repeat. Raises InvalidRequest, and Unavailable: then nothing was removed, or
        what was begun is ended by the next sweep."""


def checked_age(seconds: float) -> timedelta:
    """An age that a request gives. Raises InvalidRequest."""
    if not math.isfinite(seconds) or not MIN_AGE.total_seconds() <= seconds <= _MAX_AGE.total_seconds():
        raise InvalidRequest(
            f"older_than_s is {seconds:g}, expected {MIN_AGE.total_seconds():g} (one day) to "
            f"{_MAX_AGE.total_seconds():g}; what is younger may be needed by a fact that is on its way"
        )
    return timedelta(seconds=seconds)


def age_of_days(days: float | None) -> timedelta | None:
    """An age that a setting gives; None: never."""
    return None if days is None else timedelta(days=days)


def older_than(age: timedelta) -> str:
    """A policy by age, in words."""
    days = age / timedelta(days=1)
    return f"older than {days:g} {'day' if days == 1 else 'days'}"


def after_from(text: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of the JSON in an `after`. Raises InvalidRequest for what was no `next`."""
    try:
        return read(json.loads(text))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"after {text[:80]!r} is not one of ours: pass next unchanged") from error
