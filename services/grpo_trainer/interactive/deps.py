"""What the interactive sessions depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from episodes.identity import Split
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.adapters.policies import RegistryPolicies
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.state import Head
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.learner.protocol import InteractiveLearner


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """A trajectory of the store. reward: None until graded."""

    tokens: EpisodeTokens
    reward: float | None
    task_digest: str
    split: Split
    run_id: str = ""
    group_id: str = ""


class Trajectories(Protocol):
    """Stored trajectories by id."""

    async def get(self, trajectory_id: str) -> StoredTrajectory:
        """Raises UnknownTrajectory; Unavailable."""


class TaskClaims(Protocol):
    """The planner's record of which tasks are training data."""

    async def claim(self, digests: Sequence[str], claimed_by: str) -> None:
        """Make tasks training data for good; safe to repeat. Raises HeldOutInput if one is held out;
        InvalidInput; Unavailable."""


class Heads(Protocol):
    """The head of a model in the registry."""

    async def head(self, model: str) -> Head:
        """Raises UnknownModel; Unavailable."""

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """Whether the registry has recorded the checkpoint. Raises Unavailable."""

    async def promote(
        self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str
    ) -> int | None:
        """Move head there and return its new revision; None if head is not at expected_revision any more.
        Raises Unavailable, also until the registry has recorded the checkpoint."""


@dataclass(frozen=True, slots=True)
class InteractiveDeps:
    """Dependencies of the interactive sessions. leases: shared with the runs. max_open: models that
    stay in memory between calls."""

    new_learner: Callable[[], InteractiveLearner]
    trajectories: Trajectories
    claims: TaskClaims
    conversations: ChatConversations
    heads: Heads
    states: InteractiveStates
    policies: RegistryPolicies
    facts: BusFacts
    leases: ModelLeases
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    max_open: int = 4
