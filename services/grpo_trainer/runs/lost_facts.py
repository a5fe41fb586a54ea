"""Facts that the stream removed before this trainer had read them, while runs were open.

The trainer cannot tell whether one was about these runs. The planner answers for their ends, and announces
complete groups and offers again that it has as unsettled: until it was asked, this trainer is not ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

log = logging.getLogger(__name__)

_LOOKS: Final = 2
"""At which the planner was asked about each open run; a run ends at the second one that finds it over."""
_NAMED: Final = 3


class LostFacts:
    """What is lost, and not made up for. open_runs: those that are not over here."""

    def __init__(self, open_runs: Callable[[], Collection[str]]) -> None:
        self._open_runs = open_runs
        self._what = ""
        self._looks_left = 0

    def found(self, what: str) -> None:
        """The reader goes on behind what is gone."""
        if not (runs := self._open_runs()):
            return
        log.error("facts_lost_with_open_runs", extra={"what": what, "runs": sorted(runs)})
        self._what, self._looks_left = what, _LOOKS

    def aged_out(self, after: int, first: int) -> None:
        """The stream begins at `first`; facts up to `after` were read."""
        self.found(f"facts {after + 1} to {first - 1} of the stream were removed unread")

    def asked(self) -> None:
        """The planner was asked about every open run."""
        if self._looks_left:
            self._looks_left -= 1
            if not self._looks_left:
                log.warning("lost_facts_made_up_for", extra={"what": self._what})

    def waiting_for(self) -> str | None:
        """For readiness; None where nothing is lost."""
        if not self._looks_left:
            return None
        runs = sorted(self._open_runs())
        named = ", ".join(runs[:_NAMED]) + (" and others" if len(runs) > _NAMED else "")
        return f"{self._what}; the planner is asked about the open runs ({named or 'none is left'})"
