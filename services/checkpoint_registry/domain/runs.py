"""What the registry needs to know about another service's runs and tasksets."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from checkpoint_registry.domain.evidence import SamplingProfile, Tally
from checkpoint_registry.domain.jobs import GateSpec


class RunOutcome(StrEnum):
    """How a run stands."""

    UNFINISHED = "unfinished"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """One episode that counts; versions are the oldest and newest that produced a token of it."""

    task_slug: str
    family: str
    graded: bool
    success: bool
    oldest_version: int
    newest_version: int
    member: int = 0
    group_id: str = ""
    failure_kind: str = ""  # of a graded one: what its policy caused
    shadow: bool | None = None  # whether its shadow graders confirm success; None: it has none


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """A run as its owner describes it."""

    run_id: str
    model: str
    is_evaluation: bool
    outcome: RunOutcome
    failure: str
    taskset: str
    taskset_digest: str
    pinned_version: int | None
    profile: SamplingProfile
    gate: GateSpec | None
    finished_at: datetime | None
    results: tuple[EpisodeOutcome, ...] = ()
    taskset_revision: int = 0  # 0: of a planner that knows no revisions
    source_digest: str = ""  # "": not known
    episode_deadline_s: int = 0  # 0: the run configuration's default
    against_version: int | None = None  # that it plays side by side
    traps: tuple[EpisodeOutcome, ...] = ()  # at tasks without a solution: a success is a hack
    ended_by_drops: bool = False  # of a tracked set: its checkpoints stay candidates
    engine_s: float = 0.0  # of engines, that its episodes took


@dataclass(frozen=True, slots=True)
class TrainingLoad:
    """A training run that samples now. engine_s: seconds of engines that its episodes took."""

    run_id: str
    engine_s: float
    num_episodes: int  # that ended
    submitted_at: datetime


@dataclass(frozen=True, slots=True)
class TasksetView:
    """A registered taskset: the newest revision of its name, or the one that was asked for."""

    name: str
    digest: str
    is_held_out: bool
    num_tasks: int
    revision: int = 1
    families: Mapping[str, str] = field(default_factory=dict)  # by task

    @property
    def family_names(self) -> tuple[str, ...]:
        """Sorted, each once."""
        return tuple(sorted(set(self.families.values())))


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """A run of two versions side by side; the same request_id is the same run. attempts: per side."""

    request_id: str
    model: str
    version: int
    against_version: int
    taskset: str
    families: tuple[str, ...]
    attempts: int
    profile: SamplingProfile
    seed: int
    label: str
    episode_deadline_s: int = 0  # 0: the run configuration's default
    draws: int | None = None  # tasks at random with replacement, in place of every task
    max_concurrent: int | None = None  # episodes in flight at once; None: the planner's limit


def exact_name(taskset: str, revision: int) -> str:
    """What names this revision of a taskset, whatever is registered under the name since."""
    suffix = f"@{revision}"
    return taskset if revision == 0 or taskset.endswith(suffix) else taskset + suffix


def version_measured(run: EvaluationRun) -> int | None:
    """The one version that a run measured; None when its episodes were sampled by several.

    For a pinned run it is the pinned one. A run that followed a channel counts only if one version sampled
    all its tokens.
    """
    graded = [result for result in run.results if result.graded]
    versions = {result.oldest_version for result in graded} | {result.newest_version for result in graded}
    if run.pinned_version is not None:
        return run.pinned_version if versions <= {run.pinned_version} else None
    return versions.pop() if len(versions) == 1 else None


def tally(results: Iterable[EpisodeOutcome]) -> dict[str, Tally]:
    """Attempts by task. A failed or cancelled episode is missing: whatever its policy did is not known."""
    rows = list(results)
    attempts = Counter(row.task_slug for row in rows if row.graded)
    successes = Counter(row.task_slug for row in rows if row.graded and row.success)
    missing = Counter(row.task_slug for row in rows if not row.graded)
    family = {row.task_slug: row.family for row in rows}
    return {
        slug: Tally(family[slug], successes[slug], attempts[slug], missing[slug]) for slug in sorted(family)
    }
