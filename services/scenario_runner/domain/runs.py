"""Runs, groups and episodes: what was asked for, and where each part of it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from episodes import Split
from identities.tenants import OWN_TENANT
from scenario_runner.domain.environments import RunnerError
from scenario_runner.domain.mixes import MixReport, shares_of
from scenario_runner.domain.new_tasks import NewTasksReport
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.domain.tracked import TrackedRow
from upcycle.run_config import RunSpec


class RunState(StrEnum):
    """Where a run is. PAUSED: nothing new is dispatched. DRAINING: nothing new is planned, some episodes are
    unsettled."""

    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_RUN_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class EpisodeState(StrEnum):
    """Where an episode is; all but PLANNED and GRADED are final."""

    PLANNED = "planned"
    GRADED = "graded"
    TRAINED = "trained"
    EVALUATED = "evaluated"
    EXCLUDED = "excluded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN_RUN_STATES = frozenset({RunState.RUNNING, RunState.PAUSED})
"""States of a run that takes the results of its groups."""

NUM_RECENT: Final = 64
FAILED: Final = "x"
LOST: Final = "l"
ENDED: Final = "."

UNSETTLED = frozenset({EpisodeState.PLANNED, EpisodeState.GRADED})


@dataclass(frozen=True, slots=True)
class Counts:
    """Episodes of a run by state. requested = settled + in flight by construction: one table, one reading."""

    by_state: Mapping[EpisodeState, int]
    groups_open: int = 0
    groups_settled: int = 0
    groups_by_outcome: Mapping[str, int] = field(default_factory=dict)
    """Groups that ended."""

    @property
    def requested(self) -> int:
        """Every episode ever planned, refills included."""
        return sum(self.by_state.values())

    @property
    def in_flight(self) -> int:
        """Planned or graded, not yet settled."""
        return sum(count for state, count in self.by_state.items() if state in UNSETTLED)

    @property
    def settled(self) -> int:
        """In a final state."""
        return self.requested - self.in_flight


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run and its progress. step, policy_version: newest that the trainer published.

    taskset: key of the revision that new groups take their tasks from; with digest, number of tasks and
    revision it changes only in a training run without a step limit."""

    run_id: str
    request_id: str
    spec: RunSpec
    split: Split
    taskset_digest: str
    state: RunState
    submitted_at: datetime
    num_tasks: int
    source_digest: str = ""
    """Of the code that judges its episodes; "" where it is not known."""
    trace_id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)
    """W3C headers of SubmitRun, under which all of the run happens."""
    finished_at: datetime | None = None
    ending: RunState | None = None
    """The final state, once it is decided and not yet reached."""
    ending_since: datetime | None = None
    failure: str = ""
    step: int = 0
    policy_version: int = 0
    next_position: int = 0
    """Groups planned so far."""
    num_guided: int = 0
    """Of them, those that are guided."""
    num_new: int = 0
    """Of them, those that play new tasks and are not guided."""
    recent_ends: str = ""
    """How its last 64 episodes that were graded or failed ended, newest last: FAILED for a failure that was
    not the policy's doing, LOST when the process that played it went. Empty again when it is resumed."""
    num_graded: int = 0
    """Episodes; guided ones, and those of new tasks, are not among these, the successes and the rewards."""
    num_successes: int = 0
    reward_sum: float = 0.0
    engine_s: float = 0.0
    environment_s: float = 0.0
    trainer_s: float = 0.0
    taskset: str = ""
    taskset_revision: int = 1
    removed_at: datetime | None = None
    """When retention removed its groups and episodes; its totals are kept."""
    resumed_at: datetime | None = None
    """When a person resumed it after it had paused itself, the last time."""
    tenant: str = OWN_TENANT

    def __post_init__(self) -> None:
        if not self.taskset:
            object.__setattr__(self, "taskset", self.spec.taskset)

    def ended(self, how: str) -> "RunRecord":
        """With one more episode among the recent ones: FAILED, LOST or ENDED."""
        recent = self.recent_ends + how
        return replace(self, recent_ends=recent[-NUM_RECENT:])

    @property
    def taskset_name(self) -> str:
        """Its taskset without the revision."""
        is_first = self.taskset_revision == 1
        return self.taskset if is_first else self.taskset.removesuffix(f"@{self.taskset_revision}")

    @property
    def ends_early(self) -> bool:
        """A training run that was asked to stop before its last step."""
        return self.ending is RunState.COMPLETED and self.awaits_trainer

    @property
    def awaits_trainer(self) -> bool:
        """A training run that ends before its last step: its trainer may still settle groups."""
        training = self.spec.training
        return self.ending is not None and training is not None and not training.reached(self.step)

    @property
    def epochs_a_step(self) -> float:
        """Passes over its own taskset that a training step is; 0 of an evaluation."""
        training = self.spec.training
        if training is None or not self.num_tasks:
            return 0.0
        return training.prompts_per_step * float(shares_of(self.spec)[0]) / self.num_tasks

    @property
    def reward_mean(self) -> float:
        """Over graded episodes; 0 while there are none."""
        return self.reward_sum / self.num_graded if self.num_graded else 0.0

    @property
    def success_rate(self) -> float:
        """Over graded episodes; 0 while there are none."""
        return self.num_successes / self.num_graded if self.num_graded else 0.0


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as clients see it."""

    run: RunRecord
    counts: Counts
    sources: tuple[SourceReport, ...] = ()
    notice: str = ""
    """What a person should know of a training run that goes on."""
    tracked: tuple[TrackedRow, ...] = ()
    """What its versions did on the sets that it is followed on, oldest step first."""
    mix: tuple[MixReport, ...] = ()
    """Its tasksets, the own one first; empty where it plays one."""
    new_tasks: NewTasksReport | None = None
    """What its generators made; None where it has none made."""


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One task's rollouts. expected_members: without those that failed for good. taskset: key of the revision
    that the task is of. at_step: when it ended. guided_after: the failed episode that the guidance in its
    prompt is made of; "": it is not guided. new_task: the run's new task that it plays, which descends from
    that of the taskset; None: it plays that."""

    group_id: str
    run_id: str
    position: int
    task_position: int
    expected_members: int
    taskset: str
    num_graded: int = 0
    is_open: bool = True
    outcome: str = ""
    settled_at: datetime | None = None
    at_step: int = 0
    guided_after: str = ""
    new_task: int | None = None

    @property
    def is_new(self) -> bool:
        """Plays a new task, and is not guided."""
        return self.new_task is not None and not self.guided_after


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One planned attempt at one member of a group."""

    episode_id: str
    run_id: str
    group_id: str
    member: int
    attempt: int
    task_position: int
    taskset: str
    state: EpisodeState = EpisodeState.PLANNED
    reason: str = ""
    detail: str = ""
    reward: float = 0.0
    success: bool = False
    num_turns: int = 0
    oldest_version: int = 0
    newest_version: int = 0
    num_dispatches: int = 1
    dispatched_at: datetime | None = None
    opened_at: datetime | None = None
    graded_at: datetime | None = None
    settled_at: datetime | None = None
    body_key: str = ""
    """Claim check of the stored trajectory; empty where it is not known."""
    body_sha256: str = ""
    body_size: int = 0
    stop_reason: int = 0
    """Number of the wire's StopReason, passed on unread."""
    split: Split = Split.UNASSIGNED
    """Of its task, when the episode was planned: later messages about the episode say the same."""
    engine_s: float = 0.0
    environment_s: float = 0.0
    """Seconds, from the first fact of the episode that names them; 0 before. The same holds for engine_s."""
    guided_after: str = ""
    """Of its group."""
    new_task: int | None = None
    """Of its group."""
    shadow: bool | None = None
    """Whether its shadow graders confirm success; None: it has none, or is not graded."""
    guidance_kinds: str = ""
    """The kinds of its guidance's parts, with commas; known once it is graded."""

    @property
    def is_unsettled(self) -> bool:
        """Planned or graded."""
        return self.state in UNSETTLED


@dataclass(frozen=True, slots=True)
class Prices:
    """Per hour: of one engine, one rank of the trainer, one environment. 0: not counted."""

    engine: float = 0.0
    trainer: float = 0.0
    environment: float = 0.0

    def cost(self, run: RunRecord) -> float | None:
        """Of the seconds that a run took; None without any price."""
        if not (self.engine or self.trainer or self.environment):
            return None
        taken = run.engine_s * self.engine + run.trainer_s * self.trainer
        return (taken + run.environment_s * self.environment) / 3600


class NotFound(RunnerError):
    """No such taskset, run, model or version."""


class Refused(RunnerError):
    """The request is well formed, but the state of things does not allow it."""


class AlreadyTaken(RunnerError):
    """The name or id stands for something else already."""


class ForOperatorsOnly(RunnerError):
    """The caller has not shown the operator's key."""
