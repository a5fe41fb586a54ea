"""What the use cases need from the outside."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

from scenario_runner.domain.drawn import Draw, DrawLoad, DrawTally, EndedGroup
from scenario_runner.domain.environments import (
    EnvironmentDescription,
    EnvironmentSource,
    EpisodeToPlay,
    Grade,
    Message,
    ToolDescription,
    ToolOutcome,
)
from scenario_runner.domain.explain import DurableFact, EngineFact, PlanWaits, SessionFact
from scenario_runner.domain.learning import WithoutStep
from scenario_runner.domain.runs import (
    Counts,
    EpisodeRow,
    GroupRow,
    RunRecord,
    Split,
)
from scenario_runner.domain.sources import Offer
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask, TaskClaim
from upcycle.run_config import PolicyChoice, Purpose

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an environment's own code may take, in seconds, and how much a tool may return, in bytes."""

    start_s: float = 30.0
    tool_s: float = 30.0
    grade_s: float = 60.0
    tool_result_bytes: int = 256 * 1024


class LiveEnvironment(Protocol):
    """One isolated environment with one started scenario."""

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What the scenario yielded first."""

    @property
    def tools(self) -> tuple[ToolDescription, ...]:
        """What the policy may call."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Raises EpisodeTimeout (stuck for good), EnvironmentLost. What a tool raises is an outcome."""

    async def grade(self, answer: str, transcript: Mapping[str, Any]) -> Grade:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentLost."""

    async def close(self) -> None:
        """End it with everything it started. Idempotent."""


class EnvironmentHost(Protocol):
    """Where environments run."""

    async def start(self, episode: EpisodeToPlay) -> LiveEnvironment:
        """Raises EpisodeFault, EpisodeTimeout, EnvironmentBroken, EnvironmentLost."""

    async def describe(self, source: EnvironmentSource) -> EnvironmentDescription:
        """Load an environment without playing it. Raises EnvironmentBroken."""


class EpisodeBook(Protocol):
    """Which episodes somebody waits for."""

    async def to_play(self, episode_id: str) -> EpisodeToPlay:
        """Raises EpisodeNotOpen for one that is unknown or settled."""

    async def opened(self, episode_ids: Sequence[str]) -> None:
        """Note that the environments of these episodes were started."""


class PlanUnit(Protocol):
    """One transaction over the plan: what was read is still true when it commits, and announcements are
    published if and only if it does. Used from one thread."""

    @property
    def now(self) -> datetime:
        """The moment of the transaction."""

    @property
    def draws(self) -> "Draws":
        """What training runs draw from evaluations, in the same transaction."""

    def taskset(self, name: str) -> RegisteredTaskset | None:
        """Without its tasks: the newest revision of a name, or exactly that of `name@n`."""

    def tasksets(self) -> list[RegisteredTaskset]:
        """The newest revision of each, without its tasks."""

    def lock(self, name: str) -> None:
        """Until the end of the transaction no other one gets past its own call with this name."""

    def add_taskset(self, taskset: RegisteredTaskset) -> None:
        """A revision with its tasks."""

    def move_taskset(self, key: str, source: EnvironmentSource) -> None:
        """The same tasks, found elsewhere."""

    def tasks(self, key: str, positions: Sequence[int] | None = None) -> dict[int, RunnableTask]:
        """Of the revision with this key, by position; all of them without positions."""

    def splits(self, digests: Collection[str]) -> Mapping[str, Split]:
        """Which side each of these tasks is on."""

    def claim(self, digests: Collection[str], split: Split, claimed_by: str) -> TaskClaim | None:
        """Put tasks that are on no side on this one. Returns a claim of one of them for the other side, upon
        which the transaction must fail; of two transactions that claim a task, one sees the other."""

    def run(self, run_id: str) -> RunRecord | None: ...

    def run_of_request(self, request_id: str) -> RunRecord | None: ...

    def runs(self, limit: int, model: str) -> list[RunRecord]:
        """Newest first."""

    def active_runs(self) -> list[RunRecord]:
        """Those not in a final state, oldest first."""

    def add_run(self, run: RunRecord) -> None: ...

    def update_run(self, run: RunRecord) -> None:
        """Write its progress and state."""

    def counts(self, run_id: str) -> Counts: ...

    def num_open_groups(self, run_id: str) -> int: ...

    def recent_outcomes(self, run_id: str, limit: int) -> list[bool]:
        """Of the groups that ended last, newest first: whether a member was graded."""

    def left_open(self, run_id: str) -> list[str]:
        """Open groups that have no unsettled member: there should be none."""

    def num_without_step(self, run_id: str, since_step: int) -> int:
        """Groups that the trainer settled without training on them, since a step was completed. Of those of
        evaluations only the ones that taught the run nothing."""

    def has_step_under_way(self, run_id: str, since_step: int) -> bool:
        """Whether groups were settled as trained by a step whose `step.completed` was not heard yet."""

    def without_step(self, run_id: str, since_step: int) -> WithoutStep:
        """The same groups with their outcomes and rewards."""

    def prefetch(self, group_ids: Collection[str]) -> None:
        """Read groups with their episodes in one go; what follows about them costs nothing."""

    def group(self, group_id: str) -> GroupRow | None: ...

    def add_groups(self, groups: Sequence[GroupRow]) -> None: ...

    def update_group(self, group: GroupRow) -> None: ...

    def members(self, group_id: str) -> list[EpisodeRow]:
        """All attempts at all members."""

    def episode(self, episode_id: str) -> EpisodeRow | None: ...

    def update_episode(self, episode: EpisodeRow) -> None: ...

    def unsettled(self, run_id: str) -> list[EpisodeRow]: ...

    def results(self, run_id: str) -> list[EpisodeRow]:
        """The newest attempt at each member of each group, in order."""

    def waits(self, run_id: str) -> PlanWaits:
        """Where its unsettled episodes are, and what failed."""

    def outbox_waiting(self) -> int:
        """Announcements that are not published yet."""

    def overdue(self, run_id: str, opened_before: datetime) -> list[EpisodeRow]:
        """Planned and opened at a time before."""

    def never_opened(self, run_id: str, dispatched_before: datetime) -> list[EpisodeRow]:
        """Planned, not opened, and last dispatched before."""

    def add_episodes(self, run: RunRecord, episodes: Sequence[EpisodeRow]) -> None:
        """Plan them: each is announced as requested, and queued unless the run is paused; one that is held
        back has no dispatch."""

    def dispatch_again(self, run: RunRecord, episode: EpisodeRow) -> None:
        """Queue it once more."""

    def note_opened(self, episode_ids: Sequence[str]) -> None: ...

    def announce_submitted(self, run: RunRecord) -> None: ...

    def announce_stopping(self, run: RunRecord, reason: str, *, is_last: bool = False) -> None:
        """Once of each kind, however often it is asked for."""

    def announce_settled_instead(
        self, run: RunRecord, group_id: str, episode_ids: Sequence[str], source_run_id: str = ""
    ) -> None:
        """A group is excluded (one of the evaluation source_run_id: released), unless the stream holds the
        trainer's group.settled for it already."""

    def announce_offered(self, run: RunRecord, offer: Offer) -> None: ...

    def announce_finished(self, run: RunRecord, counts: Counts) -> None: ...

    def announce_failed(self, run: RunRecord, episode: EpisodeRow, failure: str, detail: str) -> None: ...

    def announce_cancelled(self, run: RunRecord, episode: EpisodeRow, reason: str) -> None: ...

    def announce_shortened(self, run: RunRecord, group: GroupRow, reason: str) -> None: ...


class Draws(Protocol):
    """Groups of evaluations as training runs draw them; part of a PlanUnit."""

    def load(self, run_id: str) -> DrawLoad: ...

    def one(self, run_id: str, group_id: str) -> Draw | None: ...

    def waiting(self, run_id: str, limit: int) -> list[Draw]:
        """In the order in which their evaluations were done with them."""

    def offered(self, run_id: str) -> list[Draw]:
        """Those that the trainer has not answered yet."""

    def taken(self, group_ids: Collection[str]) -> dict[str, str]:
        """Of groups that are offered to a run, or trained one: that run."""

    def taken_of_source(self, source_run_id: str) -> dict[str, str]:
        """The same of all groups of an evaluation."""

    def splits_of_source(self, source_run_id: str) -> dict[str, Split]:
        """Which side the task of each group of an evaluation is on now."""

    def ended_groups(self, source_run_id: str) -> list[EndedGroup]:
        """All groups that an evaluation is done with, in the order in which they ended."""

    def tallies(self, run_id: str) -> list[DrawTally]: ...

    def trained_after(self, run_id: str, step: int) -> bool:
        """Whether the run trained a group that it drew in a later step than this one."""

    def released_since(self, run_id: str, step: int) -> dict[str, int]:
        """Groups that taught the run nothing, released since it completed a step, by `released(<reason>)`."""

    def released_rewards(self, run_id: str, step: int) -> dict[str, dict[float, int]]:
        """The rewards of the same groups: `released(<reason>)` to reward to episodes."""

    def add(self, draws: Sequence[Draw]) -> None: ...

    def update(self, draws: Sequence[Draw]) -> None: ...

    def source_run(self, run_id: str) -> RunRecord | None:
        """A run, without the lock that PlanUnit.run takes: for what never changes of it."""

    def open_runs(self, model: str, purpose: Purpose) -> list[RunRecord]:
        """Runs of a model that are running or paused, oldest first; not locked."""


class Plan(Protocol):
    """Where the plan is kept."""

    async def transact(self, work: Callable[[PlanUnit], T]) -> T:
        """Run `work` in one transaction; it may run again after a conflict."""


class Registry(Protocol):
    """What the planner asks checkpoint_registry."""

    async def check_policy(self, policy: PolicyChoice) -> None:
        """Raises NotFound for an unknown model or version, RegistryAway."""

    async def head_version(self, model: str) -> int:
        """The promoted version, from which a training run starts. Raises NotFound, RegistryAway."""


class QueueGauge(Protocol):
    """How full the command queues are."""

    async def is_idle(self, purpose: Purpose) -> bool:
        """Whether no command of this purpose waits for a sampler or is with one."""


class Surroundings(Protocol):
    """What other services know about a run. Each returns None when nobody answers in time; none raises."""

    async def engines(self, model: str) -> Sequence[EngineFact] | None: ...

    async def ledger(self, run_id: str) -> Mapping[str, int] | None:
        """Episodes by ledger state."""

    async def session(self, run_id: str) -> SessionFact | None: ...

    async def durables(self, purpose: Purpose) -> Mapping[str, DurableFact]:
        """Of "sampler", "grader", "planner", those that could be read."""
