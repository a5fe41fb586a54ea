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
"""At which the planner answers about a run that was open; a run ends at the second one that finds it over."""
_NAMED: Final = 3


class LostFacts:
    """What is lost, and not made up for. open_runs: those that are not over here."""

    def __init__(self, open_runs: Callable[[], Collection[str]]) -> None:
        self._open_runs = open_runs
        self._what = ""
        self._looks_left: dict[str, int] = {}

    def found(self, what: str) -> None:
        """The reader goes on behind what is gone."""
        if not (runs := self._open_runs()):
            return
        log.error("facts_lost_with_open_runs", extra={"what": what, "runs": sorted(runs)})
        self._what, self._looks_left = what, dict.fromkeys(runs, _LOOKS)

    def aged_out(self, after: int, first: int) -> None:
        """The stream begins at `first`; facts up to `after` were read."""
        self.found(f"facts {after + 1} to {first - 1} of the stream were removed unread")

    def asked(self, answered: Collection[str]) -> None:
        """The planner was asked about every open run, and answered about these."""
        if not self._looks_left:
            return
        left = {run_id: looks - (run_id in answered) for run_id, looks in self._open_left().items()}
        self._looks_left = {run_id: looks for run_id, looks in left.items() if looks}
        if not self._looks_left:
            log.warning("lost_facts_made_up_for", extra={"what": self._what})

    def waiting_for(self) -> str | None:
        """For readiness; None where nothing is lost."""
        if not self._looks_left:
            return None
        runs = sorted(self._open_left())
        named = ", ".join(runs[:_NAMED]) + (" and others" if len(runs) > _NAMED else "")
        return f"{self._what}; the planner is asked about the open runs ({named or 'none is left'})"

    def _open_left(self) -> dict[str, int]:
        open_runs = self._open_runs()
        return {run_id: looks for run_id, looks in self._looks_left.items() if run_id in open_runs}
