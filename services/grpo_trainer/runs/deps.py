"""The dependencies of the sessions of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import RegistryPolicies
from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmLimits
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement
from grpo_trainer.learner.protocol import Learner
from grpo_trainer.runs.stores import BlobBodies, BlobStates


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

    def count_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """A step is durable."""

    def count_settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """A group is over."""


@dataclass(frozen=True, slots=True)
class RunDeps:
    """Everything a session works with. new_learner: one learner per session. keep_states: newest states
    kept. alarm_limits: what steps are compared with. computing: held while a batch is computed."""

    new_learner: Callable[[], Learner]
    bodies: BlobBodies
    states: BlobStates
    policies: RegistryPolicies
    held_out: HeldOut
    facts: BusFacts
    instruments: Instruments
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    alarm_limits: AlarmLimits = DEFAULT_LIMITS
    computing: asyncio.Lock = field(default_factory=asyncio.Lock)
