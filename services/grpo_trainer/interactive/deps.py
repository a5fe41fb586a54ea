"""What interactive training works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from blob_store import BlobRef
from grpo_trainer.domain.contexts import EpisodeTokens
from grpo_trainer.interactive.inputs import ConversationInput, Sample, Split
from grpo_trainer.interactive.state import Head, InteractiveState, StepDone
from grpo_trainer.learner.protocol import AccumulatingLearner
from grpo_trainer.ports import Facts, Policies


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
        """Raises UnknownTrajectory; Unavailable while the store is away."""


class TaskClaims(Protocol):
    """Which tasks are training data; the planner keeps it."""

    async def claim(self, digests: Sequence[str], claimed_by: str) -> None:
        """Make them training data for good; those that already are stay so. Raises HeldOutInput when one is
        held out by now; InvalidInput; Unavailable."""


class Conversations(Protocol):
    """Chat templates."""

    async def samples(self, conversation: ConversationInput, policy: Path) -> tuple[Sample, ...]:
        """The assistant's turns under the template of a HF directory. Raises InvalidInput."""


class Heads(Protocol):
    """Where a model's head is, and moving it."""

    async def head(self, model: str) -> Head:
        """Raises UnknownModel; Unavailable."""

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """Whether the registry has recorded the checkpoint. Raises Unavailable."""

    async def promote(
        self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str
    ) -> int | None:
        """Move head there; its revision since, None where it moved elsewhere meanwhile. Raises Unavailable,
        also until the registry holds the checkpoint."""


class InteractiveStates(Protocol):
    """Durable states of models in interactive training; a state exists once its marker does."""

    async def models(self) -> tuple[str, ...]:
        """Models of which a state is kept, sorted."""

    async def newest(self, model: str) -> InteractiveState | None:
        """Raises BrokenArtifact."""

    async def of_version(self, model: str, version: int) -> InteractiveState | None:
        """The kept state that produced a version."""

    async def commit(self, state: InteractiveState, tensors: Path) -> InteractiveState:
        """Write tensors, then the marker. Raises LineageTaken where another marker is there."""

    async def tensors(self, state: InteractiveState, path: Path) -> None:
        """Fetch the tensors of a state."""

    def marker_of(self, state: InteractiveState) -> BlobRef:
        """Claim check of the marker of a committed state."""

    async def prune(self, model: str, *, newest: int) -> None:
        """Delete the tensors and markers of all but the newest states."""


@dataclass(frozen=True, slots=True)
class InteractiveDeps:
    """What interactive training works with. busy: says which run trains a model, if one does; Unavailable:
    not yet. stepped: hears of each durable step."""

    new_learner: Callable[[], AccumulatingLearner]
    trajectories: Trajectories
    claims: TaskClaims
    conversations: Conversations
    heads: Heads
    states: InteractiveStates
    policies: Policies
    facts: Facts
    busy: Callable[[str], str | None]
    stepped: Callable[[StepDone], None]
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    max_open: int = 4
