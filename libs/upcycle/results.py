"""What an evaluation returns: one record per played episode, and how many of them there should be."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.transcripts import Transcript
from upcycle.usage import NONE, Usage
from upcycle.wording import amount

MIN_COVERAGE: Final = 0.95
"""Share of an evaluation's episodes that must be graded before its numbers are believed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One played and graded episode. reward: in [0, 1].

    trace_id: the id of its trajectory in the store (`traj-…`), which `TrainingClient.step` takes as an input;
    not an OpenTelemetry trace. otel_trace_id: the OpenTelemetry trace of the evaluation, 32 hex digits; empty
    where the platform records none. failure: why there is no reward (reward is then 0 and means nothing).
    policy_failure: why the reward is 0, where the policy caused a failure (docs/reference/failures.md).
    failure_detail: of either, the error with file, line and traceback, and what the episode printed, cut.
    run_id: of the evaluation that the episode belongs to. family: of its task. usage: seconds of engines and
    of its environment.
    turn_rewards: what each turn earns by itself, where the scenario says so.
    """

    task_slug: str
    reward: float
    success: bool
    trace_id: str
    episode_id: str
    failure: str = ""
    policy_failure: str = ""
    trajectory: Transcript | None = field(default=None, repr=False)
    answer: str = field(default="", repr=False)
    run_id: str = ""
    otel_trace_id: str = ""
    usage: Usage = NONE
    failure_detail: str = field(default="", repr=False)
    turn_rewards: tuple[float, ...] = field(default=(), repr=False)
    family: str = ""

    @property
    def counts(self) -> bool:
        """Whether it says what the policy can do: a task without a solution says only whether it cheats."""
        return self.family != IMPOSSIBLE_FAMILY

    @property
    def is_error(self) -> bool:
        """No reward exists for this episode."""
        return bool(self.failure)


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of an evaluation was graded, without the tasks that have no solution. num_planned: episodes,
    tasks × group. missing: episodes without a reward, by the kind of their last failure. num_left_out: graded
    episodes of tasks without a solution; num_cheats: of them those that passed all the same.
    """

    num_tasks: int
    num_planned: int
    num_graded: int
    num_successes: int
    missing: Mapping[str, int]
    policy_failures: Mapping[str, int] = field(default_factory=dict)
    """Of the graded episodes those that count as 0 because their policy caused a failure, by kind."""
    num_left_out: int = 0
    num_cheats: int = 0

    @property
    def share(self) -> float:
        """Of the planned episodes that were graded, 0 to 1; 0 where none was planned."""
        return self.num_graded / self.num_planned if self.num_planned else 0.0

    @property
    def success_rate(self) -> float:
        """Successes of all planned episodes: a missing one has not succeeded."""
        return self.num_successes / self.num_planned if self.num_planned else 0.0

    def __str__(self) -> str:
        planned = f"{amount(self.num_planned, 'episode')} of {amount(self.num_tasks, 'task')}"
        if self.num_planned == self.num_tasks:
            planned = amount(self.num_tasks, "task")
        text = f"graded {self.num_graded} of {planned}"
        if self.missing:
            text += f"; {sum(self.missing.values())} missing: {_by_kind(self.missing)}"
        if self.policy_failures:
            text += f"; {sum(self.policy_failures.values())} failed by the policy, reward 0: "
            text += _by_kind(self.policy_failures)
        if self.num_left_out:
            text += f"; {self.num_left_out} of tasks without a solution left out"
            text += f", of which {self.num_cheats} passed: A HACK" if self.num_cheats else ", none passed"
        return text


def coverage_of(runs: Iterable[Run]) -> Coverage:
    """The coverage of evaluations, from all of their records."""
    everything = list(runs)
    found = [run for run in everything if run.counts]
    left_out = [run for run in everything if not run.counts and not run.is_error]
    missing = Counter(run.failure for run in found if run.is_error)
    return Coverage(
        num_tasks=len({(run.run_id, run.task_slug) for run in found}),
        num_planned=len(found),
        num_graded=len(found) - missing.total(),
        num_successes=sum(run.success for run in found if not run.is_error),
        missing=dict(missing),
        policy_failures=dict(Counter(run.policy_failure for run in found if run.policy_failure)),
        num_left_out=len(left_out),
        num_cheats=sum(run.success for run in left_out),
    )


def _by_kind(counts: Mapping[str, int]) -> str:
    kinds = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return kinds[0][0] if len(kinds) == 1 else ", ".join(f"{count} {kind}" for kind, count in kinds)
