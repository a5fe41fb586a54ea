"""Group assembler: facts about trajectories in stream order in, complete groups and exclusions out.

Guarantees: a pure function of the facts in stream order; a repeated fact changes nothing; a group leaves
once, when its last expected member arrives, or at once where it is offered whole; what may not train never
leaves as a group to train.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from episodes import GroupReason
from grpo_trainer.domain.offers import Completion, Lineage, OfferedGroup, OfferRules
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, excluded


@dataclass(slots=True)
class _OpenGroup:
    first_sequence: int
    expected: int
    members: dict[int, GradedTrajectory] = field(default_factory=dict)


class GroupAssembler:
    """Collects the members of each group of one run."""

    def __init__(
        self,
        spec: TrainingSpec,
        settled: SettledGroups,
        held_out_tasks: Container[str] = (),
        lineage: Lineage | None = None,
    ) -> None:
        """held_out_tasks: digests of the tasks that the promotion gate measures on. lineage: where the run's
        weights came from; None: from version 0, which has no parent."""
        self._spec = spec
        self._settled = settled
        self._held_out_tasks = held_out_tasks
        self._offers = OfferRules(spec, held_out_tasks, lineage or Lineage(0, 0))
        self._open: dict[str, _OpenGroup] = {}
        self._left: dict[str, int] = {}

    def add(self, trajectory: GradedTrajectory) -> Completion | None:
        """One graded trajectory. A group that already left, or a member that is already there: nothing."""
        if self._is_past(trajectory.group_id):
            return None
        group = self._group(trajectory.group_id, trajectory.sequence)
        group.members.setdefault(trajectory.member, trajectory)
        return self._complete(trajectory.group_id, group)

    def shorten(self, group_id: str, expected_members: int, sequence: int) -> Completion | None:
        """A member failed for good: the group will have `expected_members`."""
        if self._is_past(group_id):
            return None
        group = self._group(group_id, sequence)
        group.expected = min(group.expected, expected_members)
        return self._complete(group_id, group)

    def offer(self, offered: OfferedGroup) -> Completion | None:
        """A whole group of an evaluation. One that was offered before, settled or not: nothing."""
        if self._is_past(offered.group_id):
            return None
        self._left[offered.group_id] = offered.sequence
        return self._offers.judged(offered)

    def settle(self, group_id: str) -> None:
        """group.settled is published for the group; facts about it are ignored from now on."""
        self._left.pop(group_id, None)
        self._open.pop(group_id, None)
        self._settled.add(group_id)

    @property
    def num_open(self) -> int:
        """Groups that wait for members."""
        return len(self._open)

    @property
    def open_groups(self) -> tuple[CompleteGroup, ...]:
        """Groups that wait for members and have some, as far as they are here."""
        return tuple(
            CompleteGroup(group_id, _in_order(group.members), group.first_sequence)
            for group_id, group in self._open.items()
            if group.members
        )

    @property
    def first_unsettled_sequence(self) -> int | None:
        """Sequence of the earliest fact about a group that is not settled; None when all are."""
        waiting = [*self._left.values(), *(group.first_sequence for group in self._open.values())]
        return min(waiting, default=None)

    def _is_past(self, group_id: str) -> bool:
        return group_id in self._left or group_id in self._settled

    def _group(self, group_id: str, sequence: int) -> _OpenGroup:
        return self._open.setdefault(group_id, _OpenGroup(sequence, self._spec.group_size))

    def _complete(self, group_id: str, group: _OpenGroup) -> Completion | None:
        if len(group.members) < group.expected:
            return None
        del self._open[group_id]
        self._left[group_id] = group.first_sequence
        complete = CompleteGroup(group_id, _in_order(group.members), group.first_sequence)
        reason, detail = self._reason_against(complete)
        return complete if reason is GroupReason.NONE else excluded(complete, reason, detail)

    def _reason_against(self, group: CompleteGroup) -> tuple[GroupReason, str]:
        for member in group.members:
            if (
                not member.may_train
                or self._spec.held_out_split
                or member.task_digest in self._held_out_tasks
            ):
                return (
                    GroupReason.HELD_OUT,
                    f"{member.trajectory_id} is of held-out task {member.task_digest[:12]}",
                )
        if len(group.members) < self._spec.min_members:
            return (
                GroupReason.SHORT_GROUP,
                f"{len(group.members)} members, at least {self._spec.min_members} are needed",
            )
        odd = next((m for m in group.members if not self._is_sound(m)), None)
        if odd is not None:
            return (
                GroupReason.QUARANTINED,
                f"{odd.trajectory_id} has reward {odd.reward}, group size {odd.group_size}",
            )
        if (why := why_no_signal(self._spec, group.members)) is not None:
            return GroupReason.ZERO_SPREAD, why
        return GroupReason.NONE, ""

    def _is_sound(self, member: GradedTrajectory) -> bool:
        in_range = 0 <= member.member < member.group_size == self._spec.group_size
        return in_range and math.isfinite(member.reward)


def _in_order(members: Mapping[int, GradedTrajectory]) -> tuple[GradedTrajectory, ...]:
    return tuple(members[index] for index in sorted(members))
