"""What the use cases need from the planner, the monitors and the clock; tests bring their own."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from checkpoint_registry.domain.open_alarms import OpenAlarms
from checkpoint_registry.domain.runs import EvaluationOrder, EvaluationRun, TasksetView, TrainingLoad
from checkpoint_registry.domain.session_watch import GradedSession

Clock = Callable[[], datetime]


class Tasksets(Protocol):
    """The planner. Raises Unavailable when it does not answer, PeerRefused when it refuses for good."""

    async def run(self, run_id: str, *, include_results: bool = False) -> EvaluationRun | None:
        """None: no such run."""

    async def taskset(self, name: str) -> TasksetView | None:
        """None: no such taskset."""

    async def source_now(self, name: str) -> str:
        """The digest of the code that would judge a run which is submitted now; "": not known."""

    async def submit(self, order: EvaluationOrder) -> str:
        """The run's id."""

    async def unfinished(self, order: EvaluationOrder) -> str:
        """The run that was submitted by this request before, maybe with other figures; "": none is under
        way."""

    async def cancel(self, run_id: str, reason: str) -> None:
        """A run that is over stays as it is."""

    async def trainings(self, model: str) -> Sequence[TrainingLoad]:
        """The training runs of a model that sample now."""

    async def pinned_versions(self) -> set[tuple[str, int]]:
        """(model, version) that runs which are not over are pinned to."""


class GradedSessions(Protocol):
    """Recorded sessions that got their reward. Raises Unavailable."""

    async def since(self, model: str, graded_since: datetime) -> Sequence[GradedSession]:
        """Those whose reward came at this moment or later, in the order of their rewards."""


class RewardAlarms(Protocol):
    """The monitors of reward hacks. Raises Unavailable."""

    async def open_alarms(self, run_ids: Sequence[str], seen_until: datetime) -> OpenAlarms:
        """Those of these runs that are neither cleared nor dismissed, and whether the monitors saw all that
        the runs' episodes said before a moment."""

    async def num_confirmed(self, run_id: str, top: int) -> int:
        """How many of the run's `top` highest-rewarded trajectories people reviewed as solved."""
