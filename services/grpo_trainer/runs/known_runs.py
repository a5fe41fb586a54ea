"""The runs that a trainer process knows, and what it shows of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from grpo_trainer.domain.alarms import AlarmLimits
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.domain.failures import BrokenRun, FailedRun
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trainers import StartingPoint, TrainerRecord
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.failing import Failures
from grpo_trainer.runs.group_buffer import RunOver
from grpo_trainer.runs.lost_facts import LostFacts
from grpo_trainer.runs.reopening import OpenRun
from grpo_trainer.runs.session import TrainingSession
from grpo_trainer.runs.watermark import ReplayWatermark

_MAX_ENDED: Final = 16
"""Sessions of ended runs that are kept to be shown."""


class KnownRuns:
    """Open runs, with their sessions where this process holds them; failed runs; the newest that ended."""

    def __init__(self, deps: RunDeps, failures: Failures, watermark: ReplayWatermark) -> None:
        self.holding = deps.holding
        self.failures = failures
        self.watermark = watermark
        self.lost = LostFacts(lambda: self.not_over)
        self.retry = RetryUntilAvailable()
        self._deps = deps
        self._open: dict[str, OpenRun] = {}
        self._unclosed: dict[str, str] = {}
        self._sessions: dict[str, TrainingSession] = {}
        self._ended_runs: deque[str] = deque()

    @property
    def all(self) -> list[TrainingSession]:
        """Sessions of this process: of open runs, and of the newest runs that ended."""
        return list(self._sessions.values())

    @property
    def elsewhere(self) -> list[OpenRun]:
        """Open runs without a session here: another trainer holds their models, or none does yet."""
        return [run for run_id, run in self._open.items() if run_id not in self._sessions]

    @property
    def not_over(self) -> list[str]:
        """Runs whose `run.finished` is not read yet, failed ones included."""
        failed = [run.failure.run_id for run in self.failures.all if not run.closed]
        return [*self._open, *(run_id for run_id in failed if run_id not in self._open)]

    def _starting_point(self) -> StartingPoint:
        """Where a trainer would start that started now. Runs that this process leaves as it ends are not
        closed."""
        failed = {run.failure.run_id: run.failure.model for run in self.failures.all if not run.closed}
        runs = {**failed, **self._unclosed}
        return StartingPoint(
            self.watermark.bound, tuple(sorted((model, run) for run, model in runs.items() if model))
        )

    async def _open_runs_at(self, point: StartingPoint) -> Sequence[tuple[str, str]]:
        """Model and id of each run that was not closed at a starting point. Where no record says it, all
        folders are listed: they are those of every run that ever trained."""
        if point.open_runs is not None:
            return point.open_runs
        return await self.retry.until_available(self._deps.states.open_runs)

    def end(self, run_id: str, sequence: int, *, saves: bool) -> None:
        """The planner ended the run, and its `run.finished` does not arrive; safe to repeat. sequence: facts
        up to it have reached their sessions. saves: see RunOver."""
        if run_id in self.failures:
            self.failures.over(run_id)
        if run_id in self._open:
            self._open[run_id].over.set()
            if run_id in self._sessions:
                self._sessions[run_id].buffer.put(RunOver(sequence, saves))

    def holder_of(self, run_id: str) -> TrainerRecord | None:
        """The other trainer that holds an open run."""
        run = self._open.get(run_id)
        return None if run is None or run_id in self._sessions else self.holding.holder(run.model)

    def holder_text(self, model: str) -> str:
        """Which trainer holds a model, this one included, for people; empty where none does."""
        return self.holding.holder_text(model)

    async def past(self, run_id: str) -> SessionState | FailedRun | None:
        """A run that this process does not know, as it is stored. Raises Unavailable."""
        model = await self._deps.model_of(run_id)
        found = None if model is None else await self._deps.states.find_run(model, run_id)
        return None if isinstance(found, BrokenRun) else found

    @property
    def failed(self) -> list[FailedRun]:
        """Runs that failed and have no session here: refused, broken, or failed before this process began."""
        return [run for run in self.failures.all if run.failure.run_id not in self._sessions]

    @property
    def alarm_limits(self) -> AlarmLimits:
        """Limits beyond which a step raises an alarm."""
        return self._deps.alarm_limits

    def get(self, run_id: str) -> TrainingSession:
        """The session of a run. Raises UnknownSession."""
        if run_id not in self._sessions:
            known = ", ".join(sorted(self._sessions)) or "none"
            raise UnknownSession(f"no training session for run {run_id!r}; sessions: {known}")
        return self._sessions[run_id]

    def waiting_for(self) -> str | None:
        """The service, store or lease that a session waits for, if there is one; failed sessions are left
        out."""
        for session in self._sessions.values():
            if session.waiting_for is not None and session.spec.run_id not in self.failures:
                return f"{session.spec.run_id} waits for {session.waiting_for}"
        return self.retry.waiting_for or self.holding.waiting_for({run.model for run in self._open.values()})

    def _keep_few(self, run_id: str) -> None:
        """Forget the session of a run that another trainer goes on with, and those of runs that ended before
        the newest few."""
        session = self._sessions.get(run_id)
        if session is not None:
            self._ended_runs.append(run_id)
        while len(self._ended_runs) > _MAX_ENDED:
            self._sessions.pop(self._ended_runs.popleft(), None)
