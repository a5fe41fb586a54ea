"""What graded production sessions say of two versions between which a canary release divides them. Pure.

A release sends each conversation to one of its two sides by its id alone, so where both versions are alike,
which side a session is of is a toss that knows nothing of how it went. Sessions are taken two by two in the
order of their rewards; two of different sides are a pair, and it is as likely that the one came first as the
other. That holds whatever else changes from hour to hour, at any share, and so for the bets of
`upcycle.gate.watch`, however often one looks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from checkpoint_registry.domain.models import CanaryRelease
from upcycle.gate.watch import Pair, Play, Trigger, Watch

FAMILY: Final = "sessions"
ALPHA: Final = 0.001
"""Of each release. With the watch over held-out tasks an equal head goes back in at most 1 %."""


@dataclass(frozen=True, slots=True)
class GradedSession:
    """A session with its reward, all of which one version sampled."""

    trajectory_id: str
    version: int
    opened_at: datetime
    graded_at: datetime
    play: Play


@dataclass(frozen=True, slots=True)
class SessionWatch:
    """The versions of a release, and what their sessions said so far. newer, older: by version."""

    newer: int
    older: int
    watch: Watch = field(default_factory=lambda: Watch.of([FAMILY], ALPHA))
    waiting: GradedSession | None = None
    """The first of the next two."""

    def after(self, sessions: Iterable[GradedSession]) -> "SessionWatch":
        """In the order of their rewards; those of other versions say nothing."""
        watch, first = self.watch, self.waiting
        for session in sessions:
            if session.version not in (self.newer, self.older):
                continue
            if first is None:
                first = session
                continue
            if first.version != session.version:
                newer, older = (first, session) if first.version == self.newer else (session, first)
                watch = watch.after(Pair(FAMILY, newer.play, older.play))
            first = None
        return replace(self, watch=watch, waiting=first)


def play_of(success: bool, failure_kind: str) -> Play:
    """failure_kind: why its reward is 0, where the policy caused a failure; else empty."""
    return Play(success, frozenset([Trigger.FAILED] if failure_kind else []))


def began(changes: Sequence[CanaryRelease]) -> datetime | None:
    """Since when the release that is under way has divided conversations between the same two versions; None:
    none is. changes: the audit, oldest first."""
    since, version = None, None
    for change in changes:
        if change.share == 0:
            since, version = None, None
        elif change.version != version:
            since, version = change.changed_at, change.version
    return since
