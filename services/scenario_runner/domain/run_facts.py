"""What the planner gathers of several services to say what a run waits for.

A fact is None when its service did not answer in time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scenario_runner.domain.learning import WithoutStep
from scenario_runner.domain.peer_facts import DurableFact, EngineFact, SessionFact
from scenario_runner.domain.runs import RunView
from scenario_runner.domain.taskset_checks import TasksetCheck


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One cause. owner: the service that has to act. waiting_s: how long the oldest episode waits for it."""

    owner: str
    what: str
    episodes: int
    waiting_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class PlanWaits:
    """Where the unsettled episodes of a run are, as the plan knows it; ages in seconds."""

    queued: int = 0
    queued_s: float = 0.0
    opened: int = 0
    opened_s: float = 0.0
    graded: int = 0
    graded_s: float = 0.0
    num_in_step: int = 0
    """Groups that trained in a step whose `step.completed` was not delivered yet."""
    complete_groups: int = 0
    """Groups that wait for the trainer alone."""
    complete_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    last_failure: str = ""
    """"<scenario>: <detail>" of the newest failure."""
    idle_outcomes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """How the newest groups of a taskset ended that gives a run none to train on, by its name."""
    without_step: WithoutStep = field(default_factory=WithoutStep)
    """Of a training run: what became of its groups since its last step."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Of a training run: evaluations under way whose groups it may train on, its limit of open groups, and
    how long the oldest offer waits for the trainer, in seconds."""

    evaluations: Sequence[str] = ()
    open_group_limit: int = 0
    offered_s: float = 0.0
    sessions_end_in_s: float | None = None
    """Seconds until the run stops waiting for recorded sessions; None: it takes none as they come."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything gathered for one run."""

    view: RunView
    waits: PlanWaits
    fleet_alive: int
    fleet_capacity: int
    outbox_waiting: int
    engines: Sequence[EngineFact] | None
    sampler: DurableFact | None
    grader: DurableFact | None
    planner: DurableFact | None
    ledger: Mapping[str, int] | None
    session: SessionFact | None
    supply: Supply = Supply()
    bus_alarms: Sequence[str] = ()
    """What the planner's bus has lost, misses, or is about to lose; one sentence each."""
    reward_alarms: Sequence[str] = ()
    """What the monitors of reward hacks warn of; one sentence each."""
    num_confirmed: int | None = None
    """Highest-rewarded trajectories that a person confirmed, of as many as the gate's require_review."""
    waiting_candidates: Sequence[str] = ()
    """Its checkpoints that passed their gate and wait until their alarms are known; one sentence each."""
    checks: Sequence[TasksetCheck] = ()
    """The newest of each kind of what was found in its tasksets."""
    guidance_kinds: Mapping[str, int] = field(default_factory=dict)
    """Guided groups by the kinds of their guidance's parts."""
    planner_fails: Sequence[str] = ()
    """What the planner's own loops have failed at for a minute, for this run; one sentence each."""

    @property
    def num_offered(self) -> int:
        """Groups of evaluations that the trainer has not settled."""
        return sum(report.offered for report in self.view.sources)
