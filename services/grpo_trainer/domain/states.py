"""The durable state of a training session, beside its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from blob_store import BlobRef
from grpo_trainer.domain.offers import Ancestor, Lineage
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.steps import StepRecord, step_from_json

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class BasePolicy:
    """Where the session's weights came from: a published version, by its manifest."""

    version: int
    checkpoint_id: str
    manifest: BlobRef


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything but tensors that a session needs to go on as if nothing had happened.

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
    cursor: int
    seen: int
    settled: Mapping[str, Any]
    settled_counts: Mapping[str, int]
    held_out_tasks: tuple[str, ...]
    opened_at: datetime
    parent_checkpoint_id: str
    trace_headers: Mapping[str, str]
    finished: bool = False
    stopped: bool = False
    """The run ends early with this state; kept beside the marker, which never changes."""
    tensors: tuple[BlobRef, ...] = ()
    canary: tuple[tuple[list[int], list[float]], ...] = ()
    last_step: StepRecord | None = None
    ancestors: tuple[Ancestor, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)

    @property
    def completed_at(self) -> datetime:
        """When the version of this state was made: with its step, or with the session."""
        return self.opened_at if self.last_step is None else self.last_step.completed_at

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
        plain["config_digest"] = self.spec.digest()
        plain["last_step"] = None if self.last_step is None else self.last_step.to_json()
        return plain


def state_from_json(plain: Mapping[str, Any]) -> SessionState:
    """The state that `to_json` described. Raises ValueError where it is of another schema or was altered."""
    if not isinstance(plain, Mapping):
        raise ValueError("a training state is a JSON object")
    if plain.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"training state has schema {plain.get('schema_version')}, this trainer reads {SCHEMA_VERSION}"
        )
    spec = training_spec(**plain["spec"])
    if spec.digest() != plain["config_digest"]:
        raise ValueError(f"training state of {spec.run_id} holds another configuration than its digest says")
    base = plain["base"]
    return SessionState(
        spec=spec,
        base=BasePolicy(base["version"], base["checkpoint_id"], BlobRef(**base["manifest"])),
        first_version=plain["first_version"],
        version=plain["version"],
        step=plain["step"],
        cursor=plain["cursor"],
        seen=plain["seen"],
        settled=plain["settled"],
        settled_counts=plain["settled_counts"],
        held_out_tasks=tuple(plain["held_out_tasks"]),
        opened_at=datetime.fromisoformat(plain["opened_at"]),
        parent_checkpoint_id=plain["parent_checkpoint_id"],
        trace_headers=plain["trace_headers"],
        finished=plain["finished"],
        canary=tuple((list(ids), list(logprobs)) for ids, logprobs in plain["canary"]),
        tensors=tuple(BlobRef(**one) for one in plain["tensors"]),
        last_step=None if plain["last_step"] is None else step_from_json(plain["last_step"]),
        ancestors=tuple(Ancestor(**one) for one in plain.get("ancestors", ())),
        sources=dict(plain.get("sources", {})),
    )
