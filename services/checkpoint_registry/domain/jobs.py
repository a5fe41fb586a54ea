"""A candidate's way through the gate as a value: what it asks, where it stands, what it waits for."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.gate import Verdict

GATE_ACTOR = "gate"


class JobPhase(StrEnum):
    """Phases only move forward."""

    NEW = "new"  # its run's spec is not read yet
    QUEUED = "queued"  # waits for the model's evaluation under way
    RUNNING = "running"  # evidence is being gathered and judged
    DONE = "done"  # the checkpoint's state says how it ended


@dataclass(frozen=True, slots=True)
class GateSpec:
    """What the run asks of its checkpoints; rates 0..1, confidence one-sided."""

    taskset: str
    attempts: int
    confidence: float
    regression_margin: float
    min_gain: float


@dataclass(frozen=True, slots=True)
class GateJob:
    """One candidate's row of the state machine."""

    checkpoint_id: str
    model: str
    version: int
    run_id: str  # the training run that produced it
    phase: JobPhase
    created_at: datetime
    traceparent: str = ""
    gate: GateSpec | None = None
    profile: SamplingProfile | None = None
    taskset_digest: str = ""
    taskset_revision: int = 0  # with the digest: what the gate's taskset was when the spec was read


class RequestState(StrEnum):
    """Of an evaluation run that we asked for."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One evaluation run that the gate asked for; the next try after a failure is a new request."""

    request_id: str
    checkpoint_id: str
    taskset_digest: str
    profile_key: str
    attempt: int  # 0 first
    run_id: str
    state: RequestState
    detail: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with what it was judged on and against."""

    candidate_checkpoint_id: str
    head_checkpoint_id: str
    head_revision: int  # at which the judgement was made; it only counts while head stays there
    gate: GateSpec
    taskset_digest: str
    candidate_run_id: str
    head_run_id: str
    verdict: Verdict
