"""Batch cutter: complete groups wait in order of completion; a batch is the first P that are still fresh."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from episodes import GroupReason
from grpo_trainer.domain.lengths import Lengths
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement, excluded


@dataclass(frozen=True, slots=True)
class Cut:
    """Groups to train now, or none if there are not enough; and what was found stale on the way, or to teach
    nothing together: single sessions of one reward."""

    groups: tuple[CompleteGroup, ...]
    stale: tuple[Settlement, ...]
    tied: tuple[Settlement, ...] = ()


class BatchCutter:
    """Order of completion is order of training, so a batch is a function of the facts and of the version."""

    def __init__(self, spec: TrainingSpec) -> None:
        self._spec = spec
        self._ready: deque[CompleteGroup] = deque()
        self._stale = Lengths()

    def add(self, group: CompleteGroup) -> None:
        """A complete group, ready to train."""
        self._ready.append(group)

    def drop_stale(self, version: int) -> tuple[Settlement, ...]:
        """Removes every group with a token older than its bound, measured from `version`, which is in
        training.

        Groups of the run were admitted at a pace that bounds their mean age, so only the hard limit throws
        them away: a lower one would throw away the long tasks. Nothing paced a group of an evaluation.
        """
        fresh: deque[CompleteGroup] = deque()
        stale: list[Settlement] = []
        for group in self._ready:
            name, limit = self._bound(group)
            staleness = version - group.effective_version
            if staleness > limit:
                detail = f"staleness {staleness} > {name} {limit} at version {version}"
                stale.append(excluded(group, GroupReason.STALE, detail))
                self._stale += Lengths.of([group])
            else:
                fresh.append(group)
        self._ready = fresh
        return tuple(stale)

    def _bound(self, group: CompleteGroup) -> tuple[str, int]:
        if group.source_run_id:
            return "max_staleness", self._spec.max_staleness
        return "stale_after", self._spec.max_age

    def cut(self, version: int) -> Cut:
        """The next batch for the policy at `version`; its groups stay here until `remove` is called for
        them."""
        stale = self.drop_stale(version)
        if len(self._ready) < self._spec.prompts_per_step:
            return Cut((), stale)
        groups = tuple(self._ready)[: self._spec.prompts_per_step]
        if self._spec.has_batch_baseline and (why := _why_tied(groups)):
            return Cut((), stale, tuple(excluded(one, GroupReason.ZERO_SPREAD, why) for one in groups))
        return Cut(groups, stale)

    @property
    def stale(self) -> Lengths:
        """Of what was thrown away for its age since `forget_stale`."""
        return self._stale

    def forget_stale(self) -> None:
        """A step has counted it."""
        self._stale = Lengths()

    def remove(self, group_id: str) -> None:
        """The group was trained or excluded."""
        self._ready = deque(group for group in self._ready if group.group_id != group_id)

    @property
    def waiting(self) -> tuple[CompleteGroup, ...]:
        """Complete groups in order of completion."""
        return tuple(self._ready)

    @property
    def num_ready(self) -> int:
        """Complete groups that wait."""
        return len(self._ready)


def _why_tied(groups: Sequence[CompleteGroup]) -> str:
    """Why a batch teaches nothing; empty where it does. Groups of several members were looked at before."""
    members = [member for group in groups for member in group.members]
    rewards = {member.reward for member in members}
    if len(members) > len(groups) or len(rewards) > 1:
        return ""
    return f"all {len(members)} single sessions of a step have reward {members[0].reward:g}"
