"""What sessions ask of a learner, and what they give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.rewards import RewardPart
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.learner.prepared import Adam, DatumValues, LossSpec, MeasuredPass, PreparedBatch


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Rollouts that are compared with one another, and the reward of each; what each of their turns earned,
    and what their rewards are made of, where that is known. proposes: their answers propose tasks that other
    groups solve."""

    group_id: str
    rollouts: tuple[EpisodeTokens, ...]
    rewards: tuple[float, ...]
    turn_rewards: tuple[tuple[float, ...], ...] = ()
    parts: tuple[tuple[RewardPart, ...], ...] = ()
    proposes: bool = False


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What an optimizer step measured; names are metric names. applied: False where nothing was left to
    learn."""

    values: Mapping[str, float]
    applied: bool


Canary = tuple[tuple[list[int], list[float]], ...]
"""Rows that prove a reload: token ids, and log-probabilities of all but the first."""


class Snapshot(Protocol):
    """One version of a session, on the host: later steps do not change it.

    Both methods work in a thread of their own. canary: rows of the last batch under these weights.
    """

    @property
    def canary(self) -> Canary: ...

    async def save(self, directory: Path) -> None:
        """Write everything that the next step depends on, as safetensors with an index in JSON."""

    async def export(self, directory: Path) -> None:
        """Write the policy as a HF directory; equal weights, equal bytes."""


class Learner(Protocol):
    """Model, optimizer and random state of one session; heavy work happens in its own thread."""

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        """Fresh optimizer on the weights in `base`, a HF directory. Raises InvalidTrainingSpec,
        OutOfMemory."""

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        """As it was when the folder `tensors` was saved. Raises BrokenArtifact, OutOfMemory."""

    def check(self, group: BatchGroup) -> None:
        """Raises UnusableTrajectory where this model cannot take the tokens."""

    async def step(self, groups: Sequence[BatchGroup], scales: Scales = UNSCALED) -> StepNumbers:
        """One optimizer step. Raises Diverged with the weights untouched, OutOfMemory."""

    async def snapshot(self) -> Snapshot:
        """The session as it is now, copied to the host. Raises OutOfMemory."""

    async def close(self) -> None:
        """Free the model's memory."""


class InteractiveLearner(Learner, Protocol):
    """A learner of interactive training: gradients accumulate. A call that fails leaves them as they were."""

    async def forward(self, batch: PreparedBatch) -> tuple[DatumValues, ...]:
        """Log-probabilities of the rows under the weights of now. Raises InvalidInput."""

    async def forward_backward(
        self, batch: PreparedBatch, loss: LossSpec, num_substeps: int, *, logprobs: bool = False
    ) -> MeasuredPass:
        """Adds the gradient of the loss, to be divided as loss.normalize says. logprobs: return those of the
        rows. Raises InvalidInput."""

    async def backward(self, batch: PreparedBatch, weights: Sequence[Sequence[float]]) -> MeasuredPass:
        """Adds the gradient of -sum(weights * logprobs), per datum of `forward`. Raises InvalidInput."""

    async def apply(self, adam: Adam) -> Mapping[str, float]:
        """One update with what is accumulated, and none is left. Raises Diverged with the weights
        untouched."""

    async def drop(self) -> None:
        """Forget the gradients."""
