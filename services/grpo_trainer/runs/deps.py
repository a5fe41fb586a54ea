"""The dependencies of the sessions of runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import HeldOutTasks, RegistryPolicies
from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmLimits
from grpo_trainer.holding import ModelHolding
from grpo_trainer.learner.protocol import Learner
from grpo_trainer.runs.stores import BlobBodies, BlobStates
from grpo_trainer.telemetry import TrainerInstruments


@dataclass(frozen=True, slots=True)
class RunDeps:
    """Everything a session works with. holding: the models of this process. new_learner: one learner per
    session. keep_states: newest states kept. alarm_limits: what steps are compared with. computing: held
    while a batch is computed. begun: how often this process began a batch, by run and batch: it lives, so
    none of these starts killed it. model_of: the model that a run trains, asked of the
    planner; None for a run that it does not know. Raises Unavailable."""

    new_learner: Callable[[], Learner]
    bodies: BlobBodies
    states: BlobStates
    policies: RegistryPolicies
    held_out: HeldOutTasks
    facts: BusFacts
    instruments: TrainerInstruments
    holding: ModelHolding
    model_of: Callable[[str], Awaitable[str | None]]
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    alarm_limits: AlarmLimits = DEFAULT_LIMITS
    computing: asyncio.Lock = field(default_factory=asyncio.Lock)
    begun: Counter[tuple[str, int, str]] = field(default_factory=Counter)
