"""The durable state of a training session, beside its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter

from blob_store import BlobRef
from grpo_trainer.domain.offers import Ancestor, Lineage
from grpo_trainer.domain.spec import TrainingSpec, without_later
from grpo_trainer.domain.steps import StepRecord

SCHEMA_VERSION: Final = 2


class SessionPhase(StrEnum):
    """What a session is doing."""

    OPENING = "opening"
    WAITING = "waiting"
    STEPPING = "stepping"
    PUBLISHING = "publishing"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class BasePolicy:
    """Where the session's weights came from: a published version, by its manifest."""

    version: int
    checkpoint_id: str
    manifest: BlobRef


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything but tensors that a session needs to continue with the same bits.

    cursor: sequence before the oldest fact that is not settled; a replay from it rebuilds every open and
    waiting group.
    seen: sequence of the newest fact that was handled. first_version: version whose weights are the base's.
    tensors: files with model, optimizer and random state; none before the first step. canary: of the
    version. last_step: what the last step announced. ancestors: versions that the base was trained from,
    newest first. sources: groups of evaluations that the run trained on, by evaluation.
    """

    spec: TrainingSpec
    base: BasePolicy
    first_version: int
    version: int
    step: int
    opened_at: datetime
    parent_checkpoint_id: str
    cursor: int = 0
    seen: int = 0
    settled: Mapping[str, Any] = field(default_factory=dict)
    settled_counts: Mapping[str, int] = field(default_factory=dict)
    held_out_tasks: tuple[str, ...] = ()
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    finished: bool = False
    stopped: bool = False
    """The run ends early with this state; kept beside the marker, which never changes."""
    tensors: tuple[BlobRef, ...] = ()
    canary: tuple[tuple[list[int], list[float]], ...] = ()
    last_step: StepRecord | None = None
    ancestors: tuple[Ancestor, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)

    @property
    def session(self) -> SessionState:
        """A run's state is its session; interactive states wrap one."""
        return self

    def with_tensors(self, files: tuple[BlobRef, ...]) -> SessionState:
        """The same state with the claim checks of its files."""
        return replace(self, tensors=files)

    @property
    def completed_at(self) -> datetime:
        """When the version of this state was made: with its step, or with the session."""
        return self.opened_at if self.last_step is None else self.last_step.completed_at

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the newest step; none before the first."""
        return {} if self.last_step is None else self.last_step.metrics

    @property
    def lineage(self) -> Lineage:
        """Where the run's weights came from."""
        return Lineage(self.base.version, self.first_version, self.ancestors)

    def closed(self, seen: int) -> SessionState:
        """The same session, over."""
        return replace(self, finished=True, seen=max(seen, self.seen))

    def to_json(self) -> dict[str, Any]:
        """Plain values, in a stable order."""
        plain = asdict(self)
        del plain["stopped"]
        for later in ("ancestors", "sources"):
            if not plain[later]:
                del plain[later]  # a state is read back to the bytes that were written
        plain["schema_version"] = SCHEMA_VERSION
        plain["opened_at"] = self.opened_at.isoformat()
        plain["spec"] = without_later(plain["spec"])
        plain["config_digest"] = self.spec.digest()
        plain["last_step"] = None if self.last_step is None else self.last_step.to_json()
        return plain


_STATES: Final = TypeAdapter(SessionState)


def state_from_json(plain: Mapping[str, Any]) -> SessionState:
    """The state that `to_json` described. Raises ValueError where it is of another schema or was altered."""
    if not isinstance(plain, Mapping):
        raise ValueError("a training state is a JSON object")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"training state has schema {plain.get('schema_version')}, this trainer reads {SCHEMA_VERSION}"
        )
    state = _STATES.validate_python(plain)
    if state.spec.digest() != plain["config_digest"]:
        raise ValueError(
            f"training state of {state.spec.run_id} holds another configuration than its digest says"
        )
    return state
