"""Why a training session failed: a kind for programs and a text for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter

from episodes import SessionFailure
from grpo_trainer.domain.errors import (
    BrokenArtifact,
    Diverged,
    InvalidTrainingSpec,
    KilledInBatch,
    LineageTaken,
    LostRank,
    OutOfMemory,
)
from grpo_trainer.domain.states import SessionState
from upcycle.errors import Unavailable

WAYS_OUT: Final = (
    "give episodes fewer tokens, set GRPO_TRAINER_GRADIENT_CHECKPOINTING=true, train adapters "
    "(`upcycle train --lora-rank 16`), or give the trainer more memory; a smaller prompts_per_step does not "
    "help, because rows are computed one after another"
)
"""What may be done where a batch does not fit in memory."""
_MAX_DETAIL: Final = 4000
"""Characters of the text that travel: a fact is small."""


ENDS_PROCESS: Final = (LostRank, Unavailable)
"""Errors that end the process instead of a run: a rank is lost, or a service or store was unavailable for too
long. The next start resumes every run from its newest state."""

_KINDS: Final[tuple[tuple[type[Exception], SessionFailure], ...]] = (
    (InvalidTrainingSpec, SessionFailure.INVALID_SPEC),
    (BrokenArtifact, SessionFailure.BROKEN_ARTIFACT),
    (LineageTaken, SessionFailure.LINEAGE_TAKEN),
    (Diverged, SessionFailure.DIVERGED),
    (OutOfMemory, SessionFailure.OUT_OF_MEMORY),
    (MemoryError, SessionFailure.OUT_OF_MEMORY),
    (KilledInBatch, SessionFailure.KILLED),
)


def kind_of(error: Exception) -> SessionFailure:
    """The kind of an error that ended a session; ERROR if it was not expected."""
    return next((kind for known, kind in _KINDS if isinstance(error, known)), SessionFailure.ERROR)


def detail_of(error: Exception) -> str:
    """The text for people."""
    text = str(error)
    if kind_of(error) is SessionFailure.ERROR:
        text = f"{type(error).__name__}: {text}; the trainer's log has the traceback"
    return (text or type(error).__name__)[:_MAX_DETAIL]


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a session without success. step: newest durable one. cursor: sequence after which a replay
    finds the end of the run."""

    run_id: str
    model: str
    kind: SessionFailure
    detail: str
    step: int
    cursor: int
    failed_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "kind": self.kind.value, "failed_at": self.failed_at.isoformat()}


_FAILURES: Final = TypeAdapter(Failure)


def failure_from_json(plain: Mapping[str, Any]) -> Failure:
    """The failure that `to_json` described. Raises ValueError."""
    return _FAILURES.validate_python(plain)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed. state: the newest durable one, if there is one that can be read. closed: the planner
    ended the run since."""

    failure: Failure
    state: SessionState | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """A run whose newest state cannot be read, and of which no failure is stored yet."""

    run_id: str
    model: str
    step: int
    detail: str
    closed: bool
