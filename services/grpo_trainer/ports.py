"""What training needs from the outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from blob_store import BlobRef
from grpo_trainer.domain.failures import Failure
from grpo_trainer.domain.offers import Ancestor
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import Settlement


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A version that engines can load."""

    version: int
    digest: str
    manifest: BlobRef


class Policies(Protocol):
    """Published policy versions, and the heads that sessions begin from."""

    async def head(self, model: str) -> BasePolicy:
        """The promoted version. Raises InvalidTrainingSpec for an unknown model; Unavailable."""

    async def newest_version(self, model: str) -> int:
        """Largest version that was ever published."""

    async def ancestors(self, base: BasePolicy, limit: int) -> tuple[Ancestor, ...]:
        """The versions that the base was trained from, newest first, at most `limit`, as far as their
        manifests are kept. Raises Unavailable."""

    async def fetch(self, base: BasePolicy) -> Path:
        """A HF directory with exactly these weights."""

    async def publish(self, state: SessionState, directory: Path) -> PublishedPolicy:
        """Publish the version of `state` from a HF directory; the same bytes again are success."""


@dataclass(frozen=True, slots=True)
class PublishedEndings:
    """outcomes: of the first group.settled per group. final_stop: the stream holds the final run.stopping."""

    outcomes: Mapping[str, str]
    final_stop: bool


class Facts(Protocol):
    """The trainer's events; each method returns when its event is stored, and may be repeated."""

    async def settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """The end of a group."""

    async def endings_since(self, spec: TrainingSpec, sequence: int) -> PublishedEndings:
        """What the stream holds after `sequence` about the end of the run and of its groups."""

    async def stepped(self, spec: TrainingSpec, record: StepRecord) -> None:
        """A step and what it consumed."""

    async def published(
        self, spec: TrainingSpec, policy: PublishedPolicy, *, step: int, at: datetime
    ) -> None:
        """A version is durable and latest."""

    async def saved(
        self,
        spec: TrainingSpec,
        record: StepRecord,
        policy: PublishedPolicy,
        state: BlobRef,
        sources: Mapping[str, int],
    ) -> None:
        """A version asks to be judged. sources: groups of evaluations in its weights, by evaluation."""

    async def failed(self, failure: Failure) -> None:
        """A session ended without success. Raises Unavailable; Unpublishable where no repeat can help."""
