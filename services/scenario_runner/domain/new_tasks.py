"""New tasks: what generators of environments make, for a training run, of tasks that taught it nothing. Pure.

A task that a whole group failed, or solved, is ordered another one of. What its generator makes is played
beside the taskset, within a share of the groups, until it has no spread any more.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Final

from episodes import GroupOutcome, GroupReason
from scenario_runner.domain.task_sampler import TaskPast
from scenario_runner.domain.tasksets import RunnableTask
from upcycle.run_config import Training
from upcycle.run_config.names import FAILED_TASKS, SOLVED_TASKS

MAX_ORDERED: Final = 10_000
"""New tasks of one run, those included that did not come."""
NUM_NEWEST: Final = 20
GIVES_NONE: Final = 8
"""Orders in a row of which none came after which a person is told."""
_LEAST_OPEN: Final = 4
_OPEN_STEPS: Final = 4
"""Of how many steps' groups on new tasks each may be another task: more would be played too seldom to learn
from, fewer be learned by heart."""


class NewTaskState(StrEnum):
    """WANTED: its generator was not asked, or not heard yet. PLAYING: groups are drawn of it. RETIRED: its
    groups have no spread; of a proposal: its group played it. The others are never played: the run has the
    task already (DUPLICATE), it is held out or for audits (HELD_OUT), it is expected to be too
    hard or too easy (FILTERED), or none came (FAILED)."""

    WANTED = "wanted"
    PLAYING = "playing"
    RETIRED = "retired"
    DUPLICATE = "duplicate"
    HELD_OUT = "held_out"
    FILTERED = "filtered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NewTaskRow:
    """A new task of a run, by its number. taskset, task_position: the task that it descends from, whose
    family it has. parent_*: the task that it is made of, that one or a new one. solved: whether a group
    solved that. newest: position of its last group."""

    run_id: str
    number: int
    taskset: str
    task_position: int
    scenario: str
    family: str
    seed: int
    parent_slug: str
    parent_digest: str
    parent_args: str
    solved: bool
    proposed_by: str = ""
    """The episode whose answer to the parent it is; "": a generator makes it."""
    state: NewTaskState = NewTaskState.WANTED
    detail: str = ""
    """Why it is not played; of one that is, what was expected of it, if anything was."""
    slug: str = ""
    args_json: str = ""
    digest: str = ""
    num_groups: int = 0
    num_trained: int = 0
    num_left_out: int = 0
    num_flat: int = 0
    """Groups without spread."""
    num_in_a_row: int = 0
    """Of them, those since the last one that trained."""
    num_graded: int = 0
    num_successes: int = 0
    newest: int = -1

    @property
    def past(self) -> TaskPast:
        """What came of its groups, for the sampler."""
        return TaskPast(self.num_trained, self.num_flat, self.newest)

    @property
    def task(self) -> RunnableTask:
        """Once it came."""
        return RunnableTask(self.slug, self.scenario, self.args_json, self.family, self.digest)

    def made(self, args_json: str, digest: str) -> "NewTaskRow":
        """With the task that its generator made."""
        slug = f"new-{self.number}-{digest[:8]}"
        state = NewTaskState.PLAYING
        return replace(self, state=state, slug=slug, args_json=args_json, digest=digest)

    def measured(self) -> "NewTaskRow":
        """A proposal that its group played to the end."""
        return replace(
            self, state=NewTaskState.RETIRED, detail=f"{self.num_successes} of {self.num_graded} solved it"
        )

    def dropped(self, state: NewTaskState, detail: str) -> "NewTaskRow":
        """Never to be played."""
        return replace(self, state=state, detail=detail)

    def planned(self, position: int) -> "NewTaskRow":
        """With one more group."""
        return replace(self, num_groups=self.num_groups + 1, newest=max(self.newest, position))

    def graded(self, *, success: bool) -> "NewTaskRow":
        """With one more episode."""
        num_successes = self.num_successes + success
        return replace(self, num_graded=self.num_graded + 1, num_successes=num_successes)

    def closed(self, outcome: str, retire_after: int) -> "NewTaskRow":
        """With one more group that ended; retired where so many in a row had no spread."""
        if outcome == GroupOutcome.TRAINED:
            return replace(self, num_trained=self.num_trained + 1, num_in_a_row=0)
        left_out = replace(self, num_left_out=self.num_left_out + 1)
        if outcome != FLAT:
            return left_out
        in_a_row = self.num_in_a_row + 1
        flat = replace(left_out, num_flat=self.num_flat + 1, num_in_a_row=in_a_row)
        if in_a_row < retire_after or self.state is not NewTaskState.PLAYING:
            return flat
        why = f"{in_a_row} groups in a row had no spread"
        detail = f"{why}; {self.detail}" if self.detail else why
        return replace(flat, state=NewTaskState.RETIRED, detail=detail)


FLAT: Final = f"{GroupOutcome.EXCLUDED.value}({GroupReason.ZERO_SPREAD.value})"
"""How a group ended that taught nothing because its rewards were equal."""


@dataclass(frozen=True, slots=True)
class NewTasksReport:
    """Of a run. newest: the last ones that were ordered, newest first."""

    by_state: Mapping[NewTaskState, int]
    num_groups: int = 0
    num_trained: int = 0
    num_left_out: int = 0
    num_graded: int = 0
    num_successes: int = 0
    newest: tuple[NewTaskRow, ...] = ()

    @property
    def num_ordered(self) -> int:
        """All told."""
        return sum(self.by_state.values())

    @property
    def none_came(self) -> tuple[NewTaskRow, ...]:
        """The newest orders that were answered, as long as none of them came; newest first. Those that came
        and were expected to teach nothing say nothing of it."""
        passed = (NewTaskState.WANTED, NewTaskState.FILTERED)
        answered = [row for row in self.newest if row.state not in passed]
        found: list[NewTaskRow] = []
        for row in answered:
            if row.slug:
                break
            found.append(row)
        return tuple(found)


def orders_one(training: Training, outcome: str, successes: Sequence[bool]) -> bool:
    """Whether a run orders a new task of one whose group ended so. successes: of its graded members."""
    if training.new_tasks == FAILED_TASKS:
        return outcome == FLAT and bool(successes) and not any(successes)
    is_over = outcome in (FLAT, GroupOutcome.TRAINED.value)
    return training.new_tasks == SOLVED_TASKS and is_over and bool(successes) and all(successes)


def most_open(training: Training) -> int:
    """How many new tasks of a run may be played at once, those included that are ordered of one taskset."""
    in_steps = _OPEN_STEPS * training.new_tasks_share * training.prompts_per_step
    return max(_LEAST_OPEN, math.ceil(in_steps))


def turns_of_new(share: float, positions: Iterable[int]) -> list[int]:
    """Of the positions of a run's groups those that new tasks may have: spread evenly, so that what was not
    used while there were none is not made up for."""
    exact = Fraction(share).limit_denominator(1_000_000)
    return [at for at in positions if math.floor((at + 1) * exact) > math.floor(at * exact)]


def order_seed(run_seed: int, number: int) -> int:
    """The seed that a generator is given, 63 bits."""
    digest = hashlib.sha256(f"{run_seed}/new/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
