"""Why a session ended without success: one word for programs, one text for people, durable and said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from grpo_trainer.domain.errors import (
    BrokenArtifact,
    Diverged,
    InvalidTrainingSpec,
    KilledInBatch,
    LineageTaken,
    LostRank,
    OutOfMemory,
    Waiting,
)
from grpo_trainer.domain.states import SessionState

WAYS_OUT: Final = (
    "give episodes fewer tokens, set GRPO_TRAINER_GRADIENT_CHECKPOINTING=true, train adapters "
    "(`upcycle train --lora-rank 16`), or give the trainer more memory; a smaller prompts_per_step does not "
    "help, because rows are computed one after another"
)
"""What may be done where a batch does not fit in memory."""
_MAX_DETAIL: Final = 4000
"""Characters of the text that travel: a fact is small."""


class FailureKind(StrEnum):
    """What ended a session, see SessionFailed.kind."""

    INVALID_SPEC = "invalid_spec"
    BROKEN_ARTIFACT = "broken_artifact"
    LINEAGE_TAKEN = "lineage_taken"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    ERROR = "error"


ENDS_PROCESS: Final = (LostRank, Waiting)
"""What no session can go on from: a rank is gone, or something outside was away for too long. The process
ends, and the next start resumes every run from its newest state."""

_KINDS: Final[tuple[tuple[type[Exception], FailureKind], ...]] = (
    (InvalidTrainingSpec, FailureKind.INVALID_SPEC),
    (BrokenArtifact, FailureKind.BROKEN_ARTIFACT),
    (LineageTaken, FailureKind.LINEAGE_TAKEN),
    (Diverged, FailureKind.DIVERGED),
    (OutOfMemory, FailureKind.OUT_OF_MEMORY),
    (MemoryError, FailureKind.OUT_OF_MEMORY),
    (KilledInBatch, FailureKind.KILLED),
)


def kind_of(error: Exception) -> FailureKind:
    """The word for what a session died of; `error` for everything that is not expected."""
    return next((kind for known, kind in _KINDS if isinstance(error, known)), FailureKind.ERROR)


def detail_of(error: Exception) -> str:
    """The text for people."""
    text = str(error)
    if kind_of(error) is FailureKind.ERROR:
        text = f"{type(error).__name__}: {text}; the trainer's log has the traceback"
    return (text or type(error).__name__)[:_MAX_DETAIL]


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a session without success. step: newest durable one. cursor: sequence after which a replay
    finds the end of the run."""

    run_id: str
    model: str
    kind: FailureKind
    detail: str
    step: int
    cursor: int
    failed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "kind": self.kind.value, "failed_at": self.failed_at.isoformat()}


def failure_from_json(plain: Mapping[str, Any]) -> Failure:
    """The failure that `to_json` described. Raises ValueError, KeyError, TypeError."""
    known = {
        **plain,
        "kind": FailureKind(plain["kind"]),
        "failed_at": datetime.fromisoformat(plain["failed_at"]),
    }
    return Failure(**known)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed. state: the newest durable one, if there is one that can be read. closed: the planner
    ended the run since."""

    failure: Failure
    state: SessionState | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """A run whose newest state cannot be read, and nothing says yet that it failed."""

    run_id: str
    model: str
    step: int
    detail: str
    closed: bool
