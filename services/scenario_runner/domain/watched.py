"""Since when a planner has looked for overdue episodes: what was open while none looked is not overdue.

Where the whole platform stands still (stopped over lunch, restored from a backup, frozen, a clock that was
set), every episode that is open is past its deadline at the first look. None of them hangs: samplers get
their commands again and play them. So their deadline begins again where the looks do.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

GAP: Final = timedelta(seconds=15)
"""Looks come once a second. Longer without one, and no planner looked."""

NOTED_EVERY: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Watched:
    """Planners have looked from `since` until `until` without a gap."""

    since: datetime
    until: datetime

    def at(self, now: datetime) -> "Watched":
        """With one more look; the same where nothing is to be noted, also where a clock was set back."""
        unseen = now - self.until
        if unseen > GAP:
            return Watched(now, now)
        return Watched(self.since, now) if unseen >= NOTED_EVERY else self

    def began_at(self, moment: datetime, now: datetime) -> datetime:
        """When a wait that began then could first be looked at. Looks ahead of our clock say nothing."""
        return self.since if moment < self.since <= now else moment
