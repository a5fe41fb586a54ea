"""Graded trajectories, groups of them, and how a group ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blob_store import BlobRef
from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.rewards import RewardPart
from grpo_trainer.domain.spec import TrainingSpec


@dataclass(frozen=True, slots=True)
class GradedTrajectory:
    """One rollout as `trajectory.graded` describes it. sequence: of the event in the stream."""

    trajectory_id: str
    episode_id: str
    run_id: str
    group_id: str
    member: int
    group_size: int
    reward: float
    success: bool
    body: BlobRef
    oldest_version: int
    newest_version: int
    task_digest: str
    may_train: bool
    """Its task may train: of split train, and asked for by the run, or by an evaluation that is on offer."""
    sequence: int
    trace_headers: Mapping[str, str]
    cut_off: bool = False
    """A budget of tokens or turns ended it, not the policy."""
    num_tokens: int = 0
    """That its policy sampled."""
    turn_rewards: tuple[float, ...] = ()
    """What each turn earned, where a grader says so."""
    parts: tuple[RewardPart, ...] = ()
    """What its reward is made of; empty where that is not known."""
    offered: bool = False
    """An evaluation asked for it: run_id is the evaluation's."""
    guided: bool = False
    """Its prompt had guidance: it trains, and says nothing of what the policy can do without."""
    guidance_kinds: tuple[str, ...] = ()
    """The kinds of that guidance's parts: plan, feedback, hint, text."""
    evaluated: bool = False
    """It is graded as an evaluation's is, and trains only in a group that is offered: a proposal, which is
    paid once its task was played."""
    proposal: bool = False
    """Its answer proposed a task that other groups of the run played; reward is what it is paid for that."""
    taskset: str = ""
    """That its task is of, without the revision; empty: not known."""
    counts_as: int | None = None
    """The version that its oldest token counts as where staleness is measured; None: oldest_version."""

    @property
    def is_own(self) -> bool:
        """What the policy did at a task by itself: not with guidance, and no proposal of one."""
        return not (self.guided or self.proposal)

    @property
    def effective_version(self) -> int:
        """What its staleness is counted from."""
        return self.oldest_version if self.counts_as is None else self.counts_as


@dataclass(frozen=True, slots=True)
class CompleteGroup:
    """A group that will get no more members, in the order of its members."""

    group_id: str
    members: tuple[GradedTrajectory, ...]
    first_sequence: int
    """Sequence of the earliest fact about it: a replay from before it sees the whole group."""
    source_run_id: str = ""
    """The evaluation that it was drawn from; empty: the run planned it."""

    @property
    def effective_version(self) -> int:
        """What its staleness is counted from."""
        return min(member.effective_version for member in self.members)

    @property
    def proposes(self) -> bool:
        """Whether its answers proposed tasks of the run."""
        return self.members[0].proposal

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(member.episode_id for member in self.members)


def has_spread(rewards: Iterable[float | None]) -> bool:
    """Whether members of a group differ in their reward; one where all are equal teaches nothing."""
    return len(set(rewards)) > 1


@dataclass(frozen=True, slots=True)
class Settlement:
    """The one end of a group. step: of the trained ones, 0 otherwise."""

    group_id: str
    outcome: GroupOutcome
    reason: GroupReason
    episode_ids: tuple[str, ...]
    step: int = 0
    detail: str = ""
    source_run_id: str = ""
    """The evaluation that the group belongs to; empty: the run planned it."""

    @property
    def label(self) -> str:
        """`trained`, `excluded(stale)`, `released(zero_spread)`, ..."""
        return f"{self.outcome.value}({self.reason.value})" if self.reason else self.outcome.value


def excluded(group: CompleteGroup, reason: GroupReason, detail: str = "") -> Settlement:
    """The settlement of a group that is not trained: a group of an evaluation is released."""
    return Settlement(
        group.group_id,
        GroupOutcome.RELEASED if group.source_run_id else GroupOutcome.EXCLUDED,
        reason,
        group.episode_ids,
        detail=detail,
        source_run_id=group.source_run_id,
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """A run as it was submitted: at which sequence, and in which trace."""

    spec: TrainingSpec
    sequence: int
    trace_headers: Mapping[str, str]
