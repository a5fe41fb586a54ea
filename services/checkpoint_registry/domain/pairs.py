"""Candidate and head side by side: what was played, what is missing, what to play next. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from checkpoint_registry.domain.evidence import Evaluation, SamplingProfile, Tally
from checkpoint_registry.domain.jobs import GateSpec, RequestState
from checkpoint_registry.domain.runs import EpisodeOutcome
from upcycle.gate.baseline import HeadRecord
from upcycle.gate.outcomes import Outcome, Outcomes, TaskCount, TaskOutcomes


@dataclass(frozen=True, slots=True)
class PairRun:
    """One run that plays a candidate and the head of one revision side by side. It is evidence of this
    candidate against this head, and of what this head did as head; of nothing else."""

    request_id: str
    checkpoint_id: str
    model: str
    head_checkpoint_id: str
    head_revision: int
    number: int  # of the runs for this judgement, 0 first
    families: tuple[str, ...]  # that it plays; empty: all
    attempts: int  # per task and side
    taskset: str
    taskset_digest: str
    profile_key: str
    run_id: str
    state: RequestState
    detail: str
    updated_at: datetime
    source_digest: str = ""  # of the code that judged it
    outcomes: Mapping[str, TaskOutcomes] = field(default_factory=dict)  # by task, once it is finished

    @property
    def by_shadow(self) -> bool:
        """Whether its shadow graders say what is a success."""
        return self.profile_key.endswith(_BY_SHADOW)


@dataclass(frozen=True, slots=True)
class NextPairs:
    """What to play next. families: empty, all."""

    families: tuple[str, ...]
    attempts: int


_BY_SHADOW: Final = "+shadow"


def evidence_key(profile: SamplingProfile, gate: GateSpec) -> str:
    """What evidence is compared under: how it was sampled, and which graders say what is a success."""
    return profile.key() + (_BY_SHADOW if gate.by_shadow else "")


def by_task(
    results: Iterable[EpisodeOutcome], attempts: int, *, by_shadow: bool = False
) -> dict[str, TaskOutcomes]:
    """What a pair's run says of each task. Member 2k is attempt k of the candidate, 2k + 1 of head. An
    episode without a grade is missing: failures that a policy caused are graded."""
    found: dict[str, dict[int, Outcome]] = {}
    family: dict[str, str] = {}
    for result in results:
        outcome = _outcome(result, by_shadow=by_shadow)
        found.setdefault(result.task_slug, {})[result.member] = outcome
        family[result.task_slug] = result.family
    return {
        task: TaskOutcomes(
            task,
            family[task],
            tuple(members.get(2 * attempt) for attempt in range(attempts)),
            tuple(members.get(2 * attempt + 1) for attempt in range(attempts)),
        )
        for task, members in sorted(found.items())
    }


def _outcome(result: EpisodeOutcome, *, by_shadow: bool) -> Outcome:
    """By the shadow graders an attempt without them is missing, unless its policy failed: so a grader that
    breaks cannot turn the verdict."""
    if not result.graded:
        return None
    if not by_shadow or result.failure_kind:
        return int(result.success)
    return None if result.shadow is None else int(result.shadow)


def of_one_source(runs: Sequence[PairRun]) -> list[PairRun]:
    """The finished runs that the code judged which judged last: an edited grader measures something else."""
    finished = [run for run in runs if run.state is RequestState.FINISHED]
    return [run for run in finished if run.source_digest == finished[-1].source_digest]


def joined(families: Mapping[str, str], runs: Sequence[PairRun]) -> Outcomes:
    """All tasks of the held-out set with their attempts in the order of the runs. families: by task."""
    tasks = []
    for task, family in families.items():
        played = [run.outcomes[task] for run in runs if task in run.outcomes]
        candidate = tuple(outcome for one in played for outcome in one.candidate)
        head = tuple(outcome for one in played for outcome in one.head)
        tasks.append(TaskOutcomes(task, family, candidate, head))
    return Outcomes(tuple(tasks))


def next_pairs(outcomes: Outcomes, more: Mapping[str, int]) -> NextPairs:
    """The run that comes nearest to the totals that are wanted: families that lack equally many attempts,
    the most of them first. more: wanted attempts by task."""
    lacking: dict[str, int] = {}
    for task in outcomes.tasks:
        lack = more.get(task.task, 0) - task.played
        lacking[task.family] = max(lack, lacking.get(task.family, 0))
    wanted = {family: lack for family, lack in lacking.items() if lack > 0}
    sizes = {attempts: sum(lack == attempts for lack in wanted.values()) for attempts in wanted.values()}
    attempts = max(sorted(sizes), key=lambda one: sizes[one])
    families = sorted(family for family, lack in wanted.items() if lack == attempts)
    return NextPairs(() if len(families) == len(lacking) else tuple(families), attempts)


def head_records(runs: Iterable[PairRun]) -> list[HeadRecord]:
    """What each head did as head: its side of the runs, added up by task."""
    counts: dict[str, dict[str, TaskCount]] = {}
    families: dict[str, dict[str, str]] = {}
    for run in runs:
        tallies = counts.setdefault(run.head_checkpoint_id, {})
        for task, one in run.outcomes.items():
            graded = [outcome for outcome in one.head if outcome is not None]
            before = tallies.get(task)
            if graded:
                successes = sum(graded) + (before.successes if before else 0)
                tallies[task] = TaskCount(successes, len(graded) + (before.attempts if before else 0))
                families.setdefault(run.head_checkpoint_id, {})[task] = one.family
    return [HeadRecord(head, tallies, families.get(head, {})) for head, tallies in counts.items()]


def as_head(run: PairRun) -> Evaluation:
    """What a pair's run says of its head alone."""
    tallies = {
        task: Tally(
            one.family,
            sum(outcome == 1 for outcome in one.head),
            sum(outcome is not None for outcome in one.head),
            sum(outcome is None for outcome in one.head),
        )
        for task, one in run.outcomes.items()
    }
    return Evaluation(
        run_id=run.run_id,
        checkpoint_id=run.head_checkpoint_id,
        taskset=run.taskset,
        taskset_digest=run.taskset_digest,
        profile_key=run.profile_key,
        num_tasks=len(tallies),
        tallies=tallies,
        finished_at=run.updated_at,
        source_digest=run.source_digest,
    )
