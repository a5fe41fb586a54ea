"""What to plan next: pure decisions of the planner.

`open_group_limit` paces sampling: a training run has at most (max_staleness + 1) x prompts_per_step groups
open, and a group counts as open until it is settled. So the mean age of what trains is bounded, and a task
that takes longer than others is waited for, not thrown away. `groups_to_finish` bounds what
is thrown away at its end. Tasks come in a fresh seeded order per epoch.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from episodes import ATTRIBUTABLE, EpisodeFailure
from scenario_runner.domain.runs import ENDED, FAILED, LOST, OPEN_RUN_STATES, RunRecord, RunState
from scenario_runner.domain.source_groups import NO_SOURCES, SourceLoad

MAX_ATTEMPTS = 3
"""Plays of one member of a group before it has failed for good."""

ONE_RESTART: Final = timedelta(minutes=10)
LOST_WHILE_OPENING: Final = timedelta(minutes=1)
PLAYED_ONCE: Final = frozenset({EpisodeFailure.ENVIRONMENT_BROKEN})
"""Failures that would come again: their member is not played again."""


def run_seed(run: RunRecord) -> int:
    """The seed of a run's task order."""
    return run.spec.training.seed if run.spec.training is not None else run.spec.sampling.seed


def open_group_limit(run: RunRecord, eval_episodes_in_flight: int) -> int:
    """Groups that may be open at once."""
    training = run.spec.training
    if training is not None:
        return (training.max_staleness + 1) * training.prompts_per_step
    most = run.spec.max_concurrent or eval_episodes_in_flight
    return max(1, min(most, eval_episodes_in_flight) // run.spec.group_size)


def groups_to_finish(run: RunRecord, num_open: int, num_in_step: int) -> int | None:
    """Groups that the steps left of a training run still take, those that are open included; None without a
    limit of steps.

    num_in_step: groups that trained in a step whose `step.completed` was not delivered yet. As many of the
    groups left are expected to be excluded as were until now (one step of groups is taken to train before any
    has). A fifth of the run's groups is the most that this adds, so at most that many are sampled in vain.
    """
    training = run.spec.training
    if training is None or not training.steps:
        return None
    num_trained = run.step * training.prompts_per_step + num_in_step
    needed = max(0, training.steps * training.prompts_per_step - num_trained)
    num_lost = max(0, run.next_position - num_open - num_trained)
    expected = needed * num_lost // (num_trained + training.prompts_per_step)
    return needed + min(expected, training.steps * training.prompts_per_step // 5)


def groups_wanted(run: RunRecord, num_open: int, limit: int, sources: SourceLoad = NO_SOURCES) -> int:
    """How many groups to plan now. Never more than may still open; an evaluation ends with its last task.

    A training run plans none while evaluations bring it enough: their groups wait, or fill a batch.
    """
    if run.state is not RunState.RUNNING:
        return 0
    free = max(0, limit - num_open - sources.offered)
    training = run.spec.training
    if training is None:
        return min(free, run.num_tasks - run.next_position)
    has_enough = sources.is_waiting or sources.offered >= training.prompts_per_step
    return 0 if run.spec.no_sampling or has_enough else free


def epoch_order(seed: int, num_tasks: int, epoch: int) -> list[int]:
    """The order of one epoch, a permutation of all tasks; the same on every machine."""
    order = list(range(num_tasks))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311 - an order of tasks, not a secret
    return order


@lru_cache(maxsize=8)
def _known_order(seed: int, num_tasks: int, epoch: int) -> Sequence[int]:
    """Groups are planned a few at a time, and the order of 100,000 tasks takes as long as planning many."""
    return tuple(epoch_order(seed, num_tasks, epoch))


def tasks_from(seed: int, num_tasks: int, position: int, count: int) -> Iterator[tuple[int, int]]:
    """(position, task index) of the next `count` groups; shuffles each epoch once."""
    epoch: int = -1
    order: Sequence[int] = ()
    for at in range(position, position + count):
        if at // num_tasks != epoch:
            epoch = at // num_tasks
            order = _known_order(seed, num_tasks, epoch)
        yield at, order[at % num_tasks]


def episode_seed(base: int, task: str, visit: int, attempt: int, replay: int) -> int:
    """The sampling seed of one episode, 63 bits, from what is played and not from the run that plays it.

    base: of the run. task: slug. visit: of the run to the task. attempt: at the task, from 0. replay: of an
    attempt that failed without the policy's doing.
    """
    digest = hashlib.sha256(f"{base}/{task}/{visit}/{attempt}/{replay}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def visit_of(run: RunRecord, position: int) -> int:
    """Which visit of the run to a task the group at this position is: training comes back to it in each
    epoch, with other seeds, and so do draws with replacement; any other evaluation plays it once, so that a
    repeated one samples the same."""
    comes_back = run.spec.training is not None or run.spec.draws is not None
    return position if comes_back else 0


def draws_from(seed: int, num_tasks: int, position: int, count: int) -> Iterator[tuple[int, int]]:
    """(position, task index) of the next `count` groups, each drawn at random with replacement."""
    for at in range(position, position + count):
        yield at, random.Random(f"{seed}/draw/{at}").randrange(num_tasks)  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Refill:
    """Play the member again."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Shorten:
    """The member failed for good: the group goes on without it."""


def how_it_ended(failure: str) -> str:
    """What a failure is among the recent ends of a run."""
    if failure == EpisodeFailure.ENVIRONMENT_LOST:
        return LOST
    return ENDED if failure in ATTRIBUTABLE else FAILED


@dataclass(frozen=True, slots=True)
class Loss:
    """An episode that was lost with its process."""

    began_at: datetime
    """When it began to be played; when it was dispatched, where its environment never opened."""
    lost_at: datetime
    opened: bool
    """Whether its environment opened."""


def lost_at_once(losses: Sequence[Loss], num_newest: int, now: datetime) -> int:
    """How many of the newest losses were under way already when the first was lost: episodes that are
    played when a fleet restarts fail together, and count as one event. Where the environment never opened,
    only those that were lost within a minute of the first: later ones waited, and failed by themselves.

    losses: newest first. The first is that of the last ten minutes, or of the newest ones where they reach
    further back: many played at once may end between two looks, few long ones may take hours.
    """
    newest = losses[:num_newest]
    recent = [loss for loss in losses if loss.lost_at >= now - ONE_RESTART]
    first = min((loss.lost_at for loss in (*newest, *recent)), default=now)
    return sum(
        loss.began_at < first and (loss.opened or loss.lost_at <= first + LOST_WHILE_OPENING)
        for loss in newest
    )


def after_failure(attempt: int, run_state: RunState, *, group_is_open: bool) -> Refill | Shorten | None:
    """What a failed attempt leads to; None when its run or group is over."""
    if run_state not in OPEN_RUN_STATES or not group_is_open:
        return None
    return Refill(attempt + 1) if attempt + 1 < MAX_ATTEMPTS else Shorten()


def has_only_failures(recent_outcomes: list[bool], enough: int) -> bool:
    """Whether a run can only fail: the last `enough` groups to end had no graded member at all.

    recent_outcomes: newest first, True where a group had a graded member.
    """
    return len(recent_outcomes) >= enough and not any(recent_outcomes[:enough])
