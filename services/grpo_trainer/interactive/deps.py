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
from grpo_trainer.holding import ModelHolding
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.heads import RegistryHeads
from grpo_trainer.interactive.inputs import ConversationInput
from grpo_trainer.interactive.states_store import InteractiveStates
from grpo_trainer.learner.protocol import InteractiveLearner


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """A trajectory of the store. reward: None until graded. content: its tokens; of one that a client played
    and graded, which has none, its conversation."""

    content: EpisodeTokens | ConversationInput
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

    async def claim(
        self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
    ) -> None:
        """Make tasks training data for good, and keep runs from retention for a day; safe to repeat. Raises
        HeldOutInput if one is held out; InvalidInput; Unavailable."""


@dataclass(frozen=True, slots=True)
class InteractiveDeps:
    """Dependencies of the interactive sessions. leases: shared with the runs. max_open: models that
    stay in memory between calls. gradients_kept_s: how long gradients stay without another call."""

    new_learner: Callable[[], InteractiveLearner]
    trajectories: Trajectories
    claims: TaskClaims
    conversations: ChatConversations
    heads: RegistryHeads
    states: InteractiveStates
    policies: RegistryPolicies
    facts: BusFacts
    leases: ModelLeases
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    max_open: int = 4
    gradients_kept_s: float = 3600.0
    holding: ModelHolding | None = None
    """The models of this process; None: it is the only trainer."""
