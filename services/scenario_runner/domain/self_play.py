"""Runs that play against themselves: which episodes propose, how many may at once, and what they are paid.
Pure.

A proposer's episode is graded at once, as one of an evaluation is: whether its answer is a proposal. What it
is paid for the difficulty of its proposal is known once a group has played that, and is said in the offer of
its group to the trainer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from scenario_runner.domain.new_tasks import NewTaskRow, NewTaskState
from scenario_runner.domain.runs import EpisodeRow
from upcycle.run_config import RunSpec
from upcycle.run_config.self_play import NO_PROPOSAL_REWARD, Roles, proposer_reward, roles_of

LEAST_COMPARED: Final = 2
"""Attempts that a pass rate is measured on, and proposals that are compared, at least."""


def roles(spec: RunSpec) -> Roles | None:
    """Of a run that plays against itself; None of any other."""
    training = spec.training
    return None if training is None else roles_of(training.self_play, training.self_play_order)


def proposes(spec: RunSpec, scenario: str, new_task: int | None) -> bool:
    """Whether an episode on a task of this scenario proposes. new_task: of the run, that it plays."""
    played = roles(spec)
    return played is not None and new_task is None and scenario == played.proposer


def num_that_may_propose(limit: int, group_size: int, num_pending: int, num_open: int) -> int:
    """Groups of proposers that may begin now: as many as can be played, each of whose members may propose one
    task, within what a run may have open; and one where nothing else is under way. More would propose for
    versions that are long gone when their tasks are played.

    limit: open groups of the run. num_pending: proposals without a group. num_open: groups that propose
    now."""
    if num_pending == num_open == 0:
        return max(1, limit // group_size)
    return max(0, (limit - num_pending) // group_size - num_open)


def paid(members: Iterable[EpisodeRow], proposed: Sequence[NewTaskRow], alpha: float) -> list[EpisodeRow]:
    """Graded members of a proposer's group with what they are paid, in their order; without those whose
    proposal could not be measured, which do not train. proposed: what they proposed."""
    by_episode = {row.proposed_by: row for row in proposed}
    found = []
    for member in members:
        reward = _reward(member, by_episode.get(member.episode_id), proposed, alpha)
        if reward is not None:
            found.append(replace(member, reward=reward))
    return found


def _reward(
    member: EpisodeRow, row: NewTaskRow | None, proposed: Sequence[NewTaskRow], alpha: float
) -> float | None:
    if not member.success:
        return NO_PROPOSAL_REWARD
    played = None if row is None else _played(row, proposed)
    if played is None or played.num_graded < LEAST_COMPARED:
        return None
    return proposer_reward(played.num_successes / played.num_graded, alpha)


def _played(row: NewTaskRow, proposed: Sequence[NewTaskRow]) -> NewTaskRow | None:
    """The proposal that was played for this one: of equal ones of a group the first."""
    if row.state is NewTaskState.DUPLICATE:
        return twin(row.digest, proposed)
    return row if row.state is NewTaskState.RETIRED else None


def attempt_that_leaves(members: Iterable[EpisodeRow]) -> EpisodeRow | None:
    """Of a group that played a task, the failed attempt whose work becomes another one: that with the highest
    reward, of equal ones the first. None where all failed, so that the task may be out of reach, or none did,
    or none of those that did was stored."""
    graded = [row for row in members if row.graded_at is not None]
    if not any(row.success for row in graded):
        return None
    failed = [row for row in graded if not row.success and row.body_key]
    return max(failed, key=lambda row: (row.reward, -row.member), default=None)


def twin(digest: str, proposed: Iterable[NewTaskRow]) -> NewTaskRow | None:
    """Of the proposals of one group the one with this digest that is played, or was."""
    played = (NewTaskState.PLAYING, NewTaskState.RETIRED)
    return next((row for row in proposed if row.digest == digest and row.state in played), None)
