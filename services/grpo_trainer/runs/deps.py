"""What the sessions of runs work with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from blob_store import BlobRef
from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmLimits
from grpo_trainer.domain.failures import BrokenRun, FailedRun, Failure
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement
from grpo_trainer.learner.protocol import Learner
from grpo_trainer.ports import Facts, Policies
from grpo_trainer.runs.attempt_record import Attempt


class Bodies(Protocol):
    """Stored trajectories."""

    async def tokens(self, trajectory: GradedTrajectory) -> EpisodeTokens:
        """Raises UnusableTrajectory; Unavailable while the store is away."""


@dataclass(frozen=True, slots=True)
class FoundStates:
    """states: of runs that did not fail. broken: runs whose newest state cannot be read. failed: runs that
    are known to have failed."""

    states: tuple[SessionState, ...] = ()
    broken: tuple[BrokenRun, ...] = ()
    failed: tuple[FailedRun, ...] = ()


class States(Protocol):
    """Durable training states; a state exists once its marker does."""

    async def find(self) -> FoundStates:
        """The newest state of every run, finished ones included."""

    async def find_run(self, model: str, run_id: str) -> FoundStates:
        """As `find`, of one run."""

    async def commit(self, state: SessionState, tensors: Path | None) -> SessionState:
        """Write the files of the folder `tensors`, then the marker. Raises LineageTaken where another marker
        is there."""

    async def tensors(self, state: SessionState, directory: Path) -> None:
        """Fetch the files of a state that has some into an empty folder."""

    async def marker_of(self, state: SessionState) -> BlobRef:
        """Claim check of the marker of a committed state."""

    async def stop(self, state: SessionState) -> None:
        """Remember that the run ends early, with this state."""

    async def close(self, state: SessionState) -> None:
        """Remember that the run is over; of its states, the newest and those that a checkpoint names stay."""

    async def fail(self, failure: Failure) -> Failure:
        """Remember that the run failed; returns what is remembered, the first failure of the run."""

    async def close_failed(self, failure: Failure) -> None:
        """As `close`, of a run that failed, with or without a state."""

    async def attempt(self, model: str, run_id: str) -> Attempt | None:
        """The batch that was begun last; None where nothing is recorded, or nothing that can be read."""

    async def note_attempt(self, model: str, run_id: str, attempt: Attempt) -> None:
        """Record which batch is begun, or that it was computed."""

    async def prune(self, run_id: str, model: str, *, newest: int) -> None:
        """Delete old states, except the `newest` and those that a checkpoint names."""


class HeldOut(Protocol):
    """Tasks that must never train."""

    async def digests(self, taskset: str) -> tuple[str, ...]:
        """Digests of a taskset's tasks, sorted. Raises InvalidTrainingSpec, Unavailable."""


class Instruments(Protocol):
    """Spans and metrics of training."""

    def step(
        self,
        spec: TrainingSpec,
        step: int,
        trace_headers: Mapping[str, str],
        trajectories: Sequence[GradedTrajectory],
    ) -> AbstractContextManager[str]:
        """Span of one step, in the run's trace, linked to its trajectories; gives its traceparent."""

    def stepped(self, spec: TrainingSpec, record: StepRecord) -> None:
        """A step is durable."""

    def settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """A group is over."""


@dataclass(frozen=True, slots=True)
class RunDeps:
    """Everything a session works with. new_learner: one learner per session. keep_states: newest states
    kept. alarm_limits: what steps are compared with. computing: held while a batch is computed."""

    new_learner: Callable[[], Learner]
    bodies: Bodies
    states: States
    policies: Policies
    held_out: HeldOut
    facts: Facts
    instruments: Instruments
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    alarm_limits: AlarmLimits = DEFAULT_LIMITS
    computing: asyncio.Lock = field(default_factory=asyncio.Lock)
