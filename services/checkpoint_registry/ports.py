"""What the use cases need from the world; adapters provide it."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from blob_store import BlobRef
from checkpoint_registry.domain.evidence import Evaluation
from checkpoint_registry.domain.jobs import EvaluationRequest, GateJob, JobPhase, Judgement, RequestState
from checkpoint_registry.domain.models import Checkpoint, EngineLease, HeadMove, Model
from checkpoint_registry.domain.retention import PublishedVersion
from checkpoint_registry.domain.runs import EvaluationOrder, RunView, TasksetView

Clock = Callable[[], datetime]


class ModelStore(Protocol):
    """Models, checkpoints, heads. Each method is one transaction, events included. Raises domain errors."""

    async def create_model(self, base: Checkpoint, *, forked_from: str) -> bool:
        """Adds a model with its version 0 as head, revision 1. False: the same digest is there already.

        Raises ModelExists when the slug holds other weights."""

    async def model(self, model: str) -> Model:
        """Raises UnknownModel."""

    async def models(self) -> list[Model]:
        """All, by slug."""

    async def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Raises UnknownCheckpoint."""

    async def version(self, model: str, version: int) -> Checkpoint:
        """Raises UnknownModel, UnknownCheckpoint."""

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        """Oldest first. Raises UnknownModel."""

    async def record_candidate(self, checkpoint: Checkpoint, job: GateJob) -> bool:
        """False: recorded before. Raises UnknownModel, CheckpointConflict."""

    async def move_head(
        self, target: Checkpoint, *, expected_revision: int | None, actor: str, reason: str, at: datetime
    ) -> HeadMove:
        """Compare-and-set with audit and event. Raises HeadMoved. A move to head itself is no move."""

    async def head_moves(self, model: str) -> list[HeadMove]:
        """Oldest first. Raises UnknownModel."""


class LeaseStore(Protocol):
    """Engine leases."""

    async def renew(self, lease: EngineLease) -> None:
        """Insert or replace. Raises UnknownModel."""

    async def live(self, model: str, channel: int, now: datetime) -> list[EngineLease]:
        """Leases that have not lapsed; empty model, channel 0: any."""

    async def held_versions(self, now: datetime) -> set[tuple[str, int]]:
        """(model, version) that engines whose lease has not lapsed at `now` serve or hold beside it."""


class GateStore(Protocol):
    """The state machine of candidates, and the evidence."""

    async def models_with_open_jobs(self) -> list[str]:
        """Models that have a job which is not done."""

    async def jobs(self, model: str, phase: JobPhase) -> list[GateJob]:
        """Oldest version first."""

    async def job(self, checkpoint_id: str) -> GateJob | None:
        """None for a base or a checkpoint recorded without one."""

    async def save_job(self, job: GateJob, *, was: JobPhase) -> bool:
        """Moves a job on; False: another replica did it first."""

    async def start_job(self, checkpoint_id: str) -> bool:
        """QUEUED to RUNNING and the checkpoint to EVALUATING, unless the model's slot is taken."""

    async def close_ungated(self, checkpoint_id: str, reason: str) -> None:
        """Job done, checkpoint stays a candidate."""

    async def hold(self, checkpoint_id: str, reason: str, at: datetime) -> None:
        """Job done, checkpoint held without a judgement, event."""

    async def conclude(self, judgement: Judgement, at: datetime) -> None:
        """Promotes or holds in one transaction, with audit and events. Raises HeadMoved."""

    async def evaluations(
        self, checkpoint_id: str, taskset_digest: str, profile_key: str
    ) -> list[Evaluation]:
        """Evidence of one checkpoint that is comparable."""

    async def has_evaluation(self, run_id: str) -> bool:
        """Whether the run's results are stored."""

    async def add_evaluation(self, evaluation: Evaluation) -> None:
        """Idempotent by run; finishes the request that asked for it."""

    async def requests(
        self, checkpoint_id: str, taskset_digest: str, profile_key: str
    ) -> list[EvaluationRequest]:
        """Tries so far, first one first."""

    async def add_request(self, request: EvaluationRequest) -> None:
        """Idempotent by request_id."""

    async def close_request(self, run_id: str, state: RequestState, detail: str, at: datetime) -> None:
        """No-op for a run that nobody asked for here."""


class Tasksets(Protocol):
    """The planner. Raises PeerUnavailable when it does not answer, PeerRefused when it says no for good."""

    async def run(self, run_id: str, *, include_results: bool = False) -> RunView | None:
        """None: no such run."""

    async def taskset(self, name: str) -> TasksetView | None:
        """None: no such taskset."""

    async def submit(self, order: EvaluationOrder) -> str:
        """The run's id."""

    async def pinned_versions(self) -> set[tuple[str, int]]:
        """(model, version) that runs which are not over are pinned to."""


class Upload(Protocol):
    """Files of a policy on their way in."""

    async def add(self, name: str, data: bytes) -> None:
        """Appends to the file. Raises InvalidRequest on a bad name or too many bytes."""

    async def publish(self, model: str) -> tuple[BlobRef, str]:
        """Stores the files as version 0 of the model: manifest address and digest. Raises InvalidRequest."""


class PolicyStore(Protocol):
    """Published weights."""

    def upload(self) -> AbstractAsyncContextManager[Upload]:
        """A private staging area, removed on exit."""

    async def fork(self, manifest: BlobRef, model: str) -> tuple[BlobRef, str]:
        """Version 0 of `model` out of another model's files, without copying them."""


class VersionStore(Protocol):
    """Published versions as the object store has them. Raises StoreTrouble."""

    async def published(self) -> list[PublishedVersion]:
        """Of every model."""

    async def remove(
        self, gone: Mapping[str, Collection[int]], *, may_go: Callable[[str, int], Awaitable[bool]]
    ) -> set[tuple[str, int]]:
        """Delete versions by model, except files that a version which stays names; returns what went.

        may_go: asked about each version right before its manifest goes; where it says no, the version stays
        whole."""


class Judge(Protocol):
    """Wakes whoever drives the gate; more calls than needed do no harm."""

    def wake(self, models: Sequence[str]) -> None:
        """Look at these models again, soon."""
