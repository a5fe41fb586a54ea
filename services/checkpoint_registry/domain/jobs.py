"""A candidate's way through the gate as a value: what it asks, where it stands, what it waits for."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from checkpoint_registry.domain.evidence import SamplingProfile
from upcycle.gate.configured import configured_rule
from upcycle.gate.decision import Decision, Verdict
from upcycle.gate.rule import GateRule

GATE_ACTOR = "gate"


class JobPhase(StrEnum):
    """Phases only move forward."""

    NEW = "new"  # its run's spec is not read yet
    QUEUED = "queued"  # waits for the model's evaluation under way
    RUNNING = "running"  # evidence is being gathered and judged
    REVIEW = "review"  # it passed; people have not confirmed enough of its run's trajectories yet
    DONE = "done"  # the checkpoint's state says how it ended


@dataclass(frozen=True, slots=True)
class GateSpec:
    """What the run asks of its checkpoints; rates 0..1. attempts: at most, per task and side. confidence:
    1 - the error of the run. require_review: trajectories of the run that people must have confirmed.
    by_shadow: the shadow graders say what is a success."""

    taskset: str
    attempts: int
    confidence: float
    regression_margin: float
    min_gain: float
    critical: tuple[str, ...] = ()
    require_review: int = 0
    by_shadow: bool = False

    def rule(self) -> GateRule:
        """Raises BadGateRule for what an older planner accepted and no gate can keep."""
        return configured_rule(
            attempts=self.attempts,
            confidence=self.confidence,
            regression_margin=self.regression_margin,
            min_gain=self.min_gain,
            critical=self.critical,
        )


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
    level: float | None = None  # at which it is judged; None: its judgement has not begun
    head_checkpoint_id: str = ""  # that it is judged against, which was made head with this revision
    head_revision: int = 0


class RequestState(StrEnum):
    """Of an evaluation run that we asked for."""

    SUBMITTED = "submitted"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with what it was judged on and against."""

    candidate_checkpoint_id: str
    head_checkpoint_id: str
    head_revision: int  # at which the judgement was made; it only counts while head stays there
    gate: GateSpec
    taskset_digest: str
    run_ids: tuple[str, ...]  # that played both side by side
    decision: Decision
    reason: str

    @property
    def is_passed(self) -> bool:
        """The candidate becomes head."""
        return self.decision.verdict is Verdict.PROMOTE
