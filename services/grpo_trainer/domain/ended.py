"""How many of a run's episodes ended since the step before, and how many of them succeeded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from grpo_trainer.domain.trajectories import GradedTrajectory

LEFT, LEFT_SUCCEEDED, UNTIL = "ended_uncounted", "succeeded_uncounted", "ended_until"
"""Metrics that remember what ended while a step was computed, and the newest fact by then: so each episode
counts in one step, also over a restart."""
_NONE: Final = (0, 0)


class EndedEpisodes:
    """The run's own unguided episodes. A step counts those that ended before it begins; what ends while it is
    computed counts in the one after it."""

    def __init__(self, before: Mapping[str, float]) -> None:
        """before: all metrics of the step before, empty for the first."""
        self._ended = int(before.get(LEFT, 0.0))
        self._succeeded = int(before.get(LEFT_SUCCEEDED, 0.0))
        self._replayed = self._until = int(before.get(UNTIL, 0.0))
        self._of_step = _NONE

    def add(self, fact: GradedTrajectory) -> None:
        """In stream order. What a replay brings again after a restart was counted before it."""
        self._until = max(self._until, fact.sequence)
        if fact.sequence > self._replayed and not fact.guided:
            self._ended += 1
            self._succeeded += fact.success

    @property
    def success(self) -> float | None:
        """Share of those that no step has counted; None where there are none."""
        return self._succeeded / self._ended if self._ended else None

    def begin_step(self) -> float | None:
        """Their success, which the step that begins counts. One that is not applied counts nothing: the next
        one begins with the same and what ended since."""
        self._of_step = self._ended, self._succeeded
        return self.success

    def remembered(self) -> dict[str, float]:
        """As metrics of the step that began: what it does not count."""
        ended, succeeded = self._of_step
        return {
            LEFT: float(self._ended - ended),
            LEFT_SUCCEEDED: float(self._succeeded - succeeded),
            UNTIL: float(self._until),
        }

    def step_taken(self) -> None:
        """The step that began is applied."""
        ended, succeeded = self._of_step
        self._ended, self._succeeded = self._ended - ended, self._succeeded - succeeded
        self._of_step = _NONE
