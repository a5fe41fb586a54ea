"""Groups of evaluations that a run may train on: what an offer holds, and whether it fits the run. Pure.

Only the planner decides which run may draw a group; what is decided here is whether the trainer can take it.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace

from episodes import GroupReason
from grpo_trainer.domain.errors import Untrainable, UnusableTrajectory
from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement, excluded
from identities.entities import is_recorded_run
from upcycle.run_config import MAX_TRAJECTORIES_PER_STEP
from upcycle.run_config.names import HIERARCHICAL

MIN_MEMBERS = 2
"""Fewer have nothing to be compared with."""

Completion = CompleteGroup | Settlement
"""A group to train on, or the reason why not."""


@dataclass(frozen=True, slots=True)
class OfferedGroup:
    """The event `group.offered`: a closed group of an evaluation, with all of its members.

    group_size: of the evaluation. before_start: the evaluation had ended before the run began. sequence:
    of the event in the stream.
    """

    group_id: str
    source_run_id: str
    group_size: int
    before_start: bool
    members: tuple[GradedTrajectory, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A version that the base was trained from. same_tokenizer: as the base's, file by file."""

    version: int
    same_tokenizer: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a run's weights came from. first_version: the number that the base's weights have in the run.
    ancestors: of the base, newest first, as far as they are known."""

    base_version: int
    first_version: int
    ancestors: tuple[Ancestor, ...] = ()

    def counts_as(self, version: int, *, before_start: bool) -> int | None:
        """The version of the run that rollouts of `version` are as old as; None: it is not of this line.

        The base counts as the run's first version, its parent as the one before, and so on. Only evaluations
        that ended before the run began may be of ancestors; later ones are of the run's own versions.
        """
        if version == self.base_version:
            return self.first_version
        if not before_start:
            return version if version >= self.first_version else None
        found = (back for back, one in enumerate(self.ancestors, 1) if one.version == version)
        back = next(found, None)
        return None if back is None else self.first_version - back

    def has_other_tokenizer(self, version: int) -> bool:
        """Whether an ancestor read and wrote other tokens than the base."""
        return any(one.version == version and not one.same_tokenizer for one in self.ancestors)


@dataclass(frozen=True, slots=True)
class OfferRules:
    """What a run takes of evaluations. held_out_tasks: digests that its gate measures on."""

    spec: TrainingSpec
    held_out_tasks: Container[str]
    lineage: Lineage

    def judged(self, offered: OfferedGroup) -> Completion:
        """The group with the versions that its staleness is counted from, or why it is released."""
        members = tuple(sorted(offered.members, key=lambda member: member.member))
        group = CompleteGroup(offered.group_id, members, offered.sequence, offered.source_run_id)
        reason, detail = self._against_tasks(members)
        if reason is GroupReason.NONE:
            reason, detail = self._against_members(offered, members)
        if reason is GroupReason.NONE:
            reason, detail = self._against_versions(offered)
        if reason is not GroupReason.NONE:
            return excluded(group, reason, detail)
        return replace(group, members=tuple(self._dated(member, offered) for member in members))

    def _against_tasks(self, members: tuple[GradedTrajectory, ...]) -> tuple[GroupReason, str]:
        for member in members:
            held_out = self.spec.held_out_split or member.task_digest in self.held_out_tasks
            if held_out or not member.may_train:
                detail = f"{member.trajectory_id} is of task {member.task_digest[:12]}, which must not train"
                return GroupReason.HELD_OUT, detail
        return GroupReason.NONE, ""

    def _against_members(
        self, offered: OfferedGroup, members: tuple[GradedTrajectory, ...]
    ) -> tuple[GroupReason, str]:
        if (why := _unsound(offered, members)) is not None:
            return GroupReason.QUARANTINED, why
        count = len(members)
        if count == 1 and self.spec.has_batch_baseline and is_recorded_run(offered.source_run_id):
            return GroupReason.NONE, ""  # its step tells whether it teaches anything
        if count < MIN_MEMBERS:
            return GroupReason.SHORT_GROUP, f"{count} member, at least {MIN_MEMBERS} are needed"
        # Each group keeps to its share of a step, so a step of any groups keeps to the limit.
        if self.spec.prompts_per_step * count > MAX_TRAJECTORIES_PER_STEP:
            return GroupReason.TOO_LARGE, (
                f"prompts_per_step * members is {self.spec.prompts_per_step * count}, "
                f"limit {MAX_TRAJECTORIES_PER_STEP}: a run of fewer prompts per step could take it"
            )
        if self.spec.advantage == HIERARCHICAL and members[0].proposal:
            return GroupReason.NONE, ""  # compared with all proposals of its step
        if (why := why_no_signal(self.spec, members)) is not None:
            return GroupReason.ZERO_SPREAD, why
        return GroupReason.NONE, ""

    def _against_versions(self, offered: OfferedGroup) -> tuple[GroupReason, str]:
        for member in offered.members:
            for version in (member.oldest_version, member.newest_version):
                if self.lineage.counts_as(version, before_start=offered.before_start) is None:
                    return GroupReason.VERSION, self._foreign(member, version, offered)
                if self.lineage.has_other_tokenizer(version):
                    return GroupReason.TOKENIZER, (
                        f"{member.trajectory_id} was sampled by version {version}, whose tokenizer files "
                        f"differ from those of version {self.lineage.base_version}, which the run began from"
                    )
        return GroupReason.NONE, ""

    def _foreign(self, member: GradedTrajectory, version: int, offered: OfferedGroup) -> str:
        base, known = self.lineage.base_version, [one.version for one in self.lineage.ancestors]
        line = (
            f"the run began from version {base}, and takes it and its ancestors {known} "
            f"(max_staleness {self.spec.max_staleness})"
            if offered.before_start
            else f"the run began from version {base}, and takes it and {self.lineage.first_version} and later"
        )
        return f"{member.trajectory_id} was sampled by version {version}; {line}"

    def _dated(self, member: GradedTrajectory, offered: OfferedGroup) -> GradedTrajectory:
        counts_as = self.lineage.counts_as(member.oldest_version, before_start=offered.before_start)
        return replace(member, counts_as=counts_as)


def unusable(group: CompleteGroup, error: UnusableTrajectory) -> Settlement:
    """The settlement of a group whose bodies cannot be trained on. Of an evaluation they may be sound all the
    same: it also measures greedily."""
    is_sound = group.source_run_id and isinstance(error, Untrainable)
    return excluded(group, GroupReason.UNTRAINABLE if is_sound else GroupReason.QUARANTINED, str(error))


def _unsound(offered: OfferedGroup, members: tuple[GradedTrajectory, ...]) -> str | None:
    """Why the members cannot be what a group has; None where they can."""
    if not members:
        return f"{offered.group_id} was offered without members"
    numbers = {member.member for member in members}
    trajectories = {member.trajectory_id for member in members}
    episodes = {member.episode_id for member in members}
    if not len(numbers) == len(trajectories) == len(episodes) == len(members):
        return f"{offered.group_id} was offered with a member twice"
    for member in members:
        if not (0 <= member.member < offered.group_size and math.isfinite(member.reward)):
            return (
                f"{member.trajectory_id} is member {member.member} of {offered.group_size}, with reward "
                f"{member.reward}"
            )
    return None
