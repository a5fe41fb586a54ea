"""What training needs from the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from grpo_trainer.domain.alarms import DEFAULT_LIMITS, AlarmLimits
from grpo_trainer.domain.attempts import Attempt
from grpo_trainer.domain.contexts import EpisodeTokens
from grpo_trainer.domain.failures import BrokenRun, FailedRun, Failure
from grpo_trainer.domain.hands import Adam, DatumValues, HandState, Head, Measured, StepDone
from grpo_trainer.domain.inputs import ConversationInput, LossSpec, PreparedBatch, Sample, Split
from grpo_trainer.domain.offers import Ancestor
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement, StoredBody


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One rollout to train on."""

    tokens: EpisodeTokens
    reward: float
    success: bool


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """Rollouts that are compared with one another."""

    group_id: str
    members: tuple[BatchMember, ...]


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What an optimizer step measured; names are metric names. applied: False where nothing was left to
    learn."""

    values: Mapping[str, float]
    applied: bool


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A version that engines can load."""

    version: int
    digest: str
    manifest: StoredBody


Canary = tuple[tuple[list[int], list[float]], ...]
"""Rows that prove a reload: token ids, and log-probabilities of all but the first."""


class Snapshot(Protocol):
    """One version of a session, on the host: it does not change while the learner goes on.

    Both methods work beside the learner's thread. canary: rows of the last batch under these weights.
    """

    @property
    def canary(self) -> Canary: ...

    async def save(self, directory: Path) -> None:
        """Write everything that the next step depends on, in the format of torch.distributed.checkpoint."""

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

    async def step(self, groups: Sequence[BatchGroup]) -> StepNumbers:
        """One optimizer step. Raises Diverged with the weights untouched, OutOfMemory."""

    async def snapshot(self) -> Snapshot:
        """The session as it is now, copied to the host. Raises OutOfMemory."""

    async def close(self) -> None:
        """Let the memory go."""


class Bodies(Protocol):
    """Stored trajectories."""

    async def tokens(self, trajectory: GradedTrajectory) -> EpisodeTokens:
        """Raises UnusableTrajectory; Waiting while the store is away."""


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

    async def marker_of(self, state: SessionState) -> StoredBody:
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


class Policies(Protocol):
    """Published policy versions, and the heads that sessions begin from."""

    async def head(self, model: str) -> BasePolicy:
        """The promoted version. Raises InvalidTrainingSpec for an unknown model; Waiting."""

    async def newest_version(self, model: str) -> int:
        """Largest version that was ever published."""

    async def ancestors(self, base: BasePolicy, limit: int) -> tuple[Ancestor, ...]:
        """The versions that the base was trained from, newest first, at most `limit`, as far as their
        manifests are kept. Raises Waiting."""

    async def fetch(self, base: BasePolicy) -> Path:
        """A HF directory with exactly these weights."""

    async def publish(self, state: SessionState, directory: Path, *, at: datetime) -> PublishedPolicy:
        """Publish the version of `state` from a HF directory; the same bytes again are success."""


class HeldOut(Protocol):
    """Tasks that must never train."""

    async def digests(self, taskset: str) -> tuple[str, ...]:
        """Digests of a taskset's tasks, sorted. Raises InvalidTrainingSpec where there is none; Waiting."""


@dataclass(frozen=True, slots=True)
class SaidOfRun:
    """outcomes: of groups, in the words that came first. last_word: the planner waits for no other group."""

    outcomes: Mapping[str, str]
    last_word: bool


class Facts(Protocol):
    """Where the trainer's own facts go; each returns when the fact is durable, and may be repeated."""

    async def settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """The end of a group."""

    async def said_since(self, spec: TrainingSpec, sequence: int) -> SaidOfRun:
        """What the stream holds about the end of the run and its groups after `sequence`."""

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
        state: StoredBody,
        sources: Mapping[str, int],
    ) -> None:
        """A version asks to be judged. sources: groups of evaluations in its weights, by evaluation."""

    async def failed(self, failure: Failure) -> None:
        """A session ended without success. Raises Waiting; Unpublishable where no repeat can help."""


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
class Tools:
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


class HandLearner(Learner, Protocol):
    """A learner of interactive training: gradients accumulate. A call that fails leaves them as they were."""

    async def forward(self, batch: PreparedBatch) -> tuple[DatumValues, ...]:
        """Log-probabilities of the rows under the weights of now. Raises InvalidInput."""

    async def forward_backward(self, batch: PreparedBatch, loss: LossSpec, num_substeps: int) -> Measured:
        """Adds the gradient of the loss, to be divided by all trained tokens of the step. Raises
        InvalidInput."""

    async def backward(self, batch: PreparedBatch, weights: Sequence[Sequence[float]]) -> Measured:
        """Adds the gradient of -sum(weights * logprobs), per datum of `forward`. Raises InvalidInput."""

    async def apply(self, adam: Adam) -> Mapping[str, float]:
        """One update with what is accumulated, and none is left. Raises Diverged with the weights
        untouched."""

    async def drop(self) -> None:
        """Forget the gradients."""


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
        """Raises UnknownTrajectory; Waiting while the store is away."""


class TaskClaims(Protocol):
    """Which tasks are training data; the planner keeps it."""

    async def claim(self, digests: Sequence[str], claimed_by: str) -> None:
        """Make them training data for good; those that already are stay so. Raises HeldOutInput when one is
        held out by now; InvalidInput; Waiting."""


class Conversations(Protocol):
    """Chat templates."""

    async def samples(self, conversation: ConversationInput, policy: Path) -> tuple[Sample, ...]:
        """The assistant's turns under the template of a HF directory. Raises InvalidInput."""


class Heads(Protocol):
    """Where a model's head is, and moving it."""

    async def head(self, model: str) -> Head:
        """Raises UnknownModel; Waiting."""

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """Whether the registry has recorded the checkpoint. Raises Waiting."""

    async def promote(
        self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str
    ) -> int | None:
        """Move head there; its revision since, None where it moved elsewhere meanwhile. Raises Waiting, also
        until the registry holds the checkpoint."""


class HandStates(Protocol):
    """Durable states of models in interactive training; a state exists once its marker does."""

    async def models(self) -> tuple[str, ...]:
        """Models of which a state is kept, sorted."""

    async def newest(self, model: str) -> HandState | None:
        """Raises BrokenArtifact."""

    async def of_version(self, model: str, version: int) -> HandState | None:
        """The kept state that produced a version."""

    async def commit(self, state: HandState, tensors: Path) -> HandState:
        """Write tensors, then the marker. Raises LineageTaken where another marker is there."""

    async def tensors(self, state: HandState, path: Path) -> None:
        """Fetch the tensors of a state."""

    def marker_of(self, state: HandState) -> StoredBody:
        """Claim check of the marker of a committed state."""

    async def prune(self, model: str, *, newest: int) -> None:
        """Delete the tensors and markers of all but the newest states."""


@dataclass(frozen=True, slots=True)
class HandTools:
    """What interactive training works with. busy: says which run trains a model, if one does; Waiting:
    not yet. stepped: hears of each durable step."""

    new_learner: Callable[[], HandLearner]
    trajectories: Trajectories
    claims: TaskClaims
    conversations: Conversations
    heads: Heads
    states: HandStates
    policies: Policies
    facts: Facts
    busy: Callable[[str], str | None]
    stepped: Callable[[StepDone], None]
    now: Callable[[], datetime]
    work_dir: Path
    keep_states: int = 2
    max_open: int = 4
