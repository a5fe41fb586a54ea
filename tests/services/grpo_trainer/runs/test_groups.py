"""Groups on values alone: when one leaves, as what, and why it may not train."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from blob_store import BlobRef
from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.offers import Completion, OfferedGroup
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.signal import why_no_signal
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.runs.groups import GroupAssembler

RUN, GROUP, OTHER = "run-1", "run-1-g00000", "run-1-g00001"
SPEC = TrainingSpec(RUN, "m", 4)


def member(number: int, sequence: int, *, group_id: str = GROUP, **changes: Any) -> GradedTrajectory:
    """Odd members are rewarded with 1, even ones with 0."""
    plain = GradedTrajectory(
        trajectory_id=f"traj-{group_id}-e{number}",
        episode_id=f"{group_id}-e{number}",
        run_id=RUN,
        group_id=group_id,
        member=number,
        group_size=4,
        reward=float(number % 2),
        success=number % 2 == 1,
        body=BlobRef("k", "s", 1),
        oldest_version=0,
        newest_version=0,
        task_digest="digest-of-a-task",
        may_train=True,
        sequence=sequence,
        trace_headers={},
    )
    return dataclasses.replace(plain, **changes)


def signals(rewards: tuple[float, ...], solved: tuple[bool, ...], **options: Any) -> str | None:
    """Why members with these rewards teach nothing."""
    members = [
        member(number, 1, reward=reward, success=success)
        for number, (reward, success) in enumerate(zip(rewards, solved, strict=True))
    ]
    return why_no_signal(dataclasses.replace(SPEC, **options), members)


def test_a_spread_below_the_least_one_is_none() -> None:
    rewards, solved = (0.95, 1.0, 0.98, 1.0), (True,) * 4
    assert signals(rewards, solved) is None
    assert signals(rewards, solved, min_spread=0.04) is None
    assert signals(rewards, solved, min_spread=0.06) == (
        "4 rewards from 0.95 to 1 differ by less than min_spread 0.06"
    )


def test_groups_that_all_solved_are_skipped_where_the_run_says_so_and_graded_failures_never() -> None:
    rewards = (0.95, 1.0, 0.98, 1.0)
    assert signals(rewards, (True,) * 4, solved_groups="skip") == (
        "4 rewards from 0.95 to 1 tell successes apart by something else than success (solved_groups=skip)"
    )
    assert signals(rewards, (True, True, False, True), solved_groups="skip") is None
    assert signals(rewards, (False,) * 4, solved_groups="skip") is None
    assert signals((1.0,) * 4, (True,) * 4, solved_groups="skip") == "all 4 rewards are 1"


def test_a_solved_group_ends_as_one_without_spread() -> None:
    one = assembler(solved_groups="skip")
    for number in range(3):
        one.add(member(number, 1, reward=1.0, success=True))
    done = one.add(member(3, 1, reward=0.9, success=True))
    assert isinstance(done, Settlement)
    assert done.reason is GroupReason.ZERO_SPREAD


def assembler(settled: SettledGroups | None = None, **changes: Any) -> GroupAssembler:
    spec = dataclasses.replace(SPEC, **changes)
    return GroupAssembler(spec, SettledGroups(RUN) if settled is None else settled, {"digest-held-out"})


def ended(numbers: tuple[int, ...] = (0, 1, 2, 3), at: int = 3, **changes: Any) -> Completion:
    """What became of a group whose member `at` is odd in some way, with the others as they should be."""
    one = assembler()
    if len(numbers) < 4:
        one.shorten(GROUP, len(numbers), 1)
    *before, last = [one.add(member(number, 2, **(changes if number == at else {}))) for number in numbers]
    assert before == [None] * (len(numbers) - 1)
    assert last is not None
    return last


def refused(found: Completion, reason: GroupReason) -> str:
    assert isinstance(found, Settlement)
    assert (found.group_id, found.outcome, found.reason) == (GROUP, GroupOutcome.EXCLUDED, reason)
    return found.detail


def test_a_group_leaves_with_its_last_member_in_the_order_of_members() -> None:
    one = assembler()
    facts = {2: member(2, 11), 0: member(0, 12), 3: member(3, 15)}
    assert [one.add(fact) for fact in facts.values()] == [None] * 3
    assert one.open_groups == (CompleteGroup(GROUP, (facts[0], facts[2], facts[3]), 11),)
    last = member(1, 16)
    assert one.add(last) == CompleteGroup(GROUP, (facts[0], last, facts[2], facts[3]), 11)
    assert (one.num_open, one.first_unsettled_sequence) == (0, 11)


def test_a_repeated_member_neither_counts_twice_nor_replaces_the_first() -> None:
    one = assembler()
    first = member(0, 1)
    assert [one.add(fact) for fact in (first, member(0, 2, reward=9.0), member(1, 3), member(2, 4))] == [
        None
    ] * 4
    found = one.add(member(3, 5))
    assert isinstance(found, CompleteGroup)
    assert found.members[0] is first


def test_facts_about_a_group_that_left_or_was_settled_change_nothing() -> None:
    settled = SettledGroups(RUN)
    one = assembler(settled)
    for number in range(4):
        one.add(member(number, number + 1))
    assert one.add(member(0, 7)) is None
    assert one.shorten(GROUP, 0, 8) is None
    assert (one.num_open, one.first_unsettled_sequence) == (0, 1)
    one.settle(GROUP)
    assert one.first_unsettled_sequence is None
    assert GROUP in settled
    assert one.add(member(0, 9)) is None
    assert one.shorten(GROUP, 0, 10) is None
    assert (one.num_open, one.first_unsettled_sequence) == (0, None)


def test_a_group_can_be_settled_while_it_waits_for_members_or_before_any_fact_about_it() -> None:
    one = assembler()
    one.add(member(0, 3))
    one.add(member(0, 4, group_id=OTHER))
    one.settle(GROUP)
    one.settle("run-1-g00009")
    assert [group.group_id for group in one.open_groups] == [OTHER]
    assert one.first_unsettled_sequence == 4


def test_a_member_that_failed_is_no_longer_waited_for_before_or_after_the_others_came() -> None:
    one = assembler()
    for number in (0, 1):
        one.add(member(number, number + 5))
    assert one.shorten(GROUP, 3, 8) is None
    found = one.shorten(GROUP, 2, 9)
    assert isinstance(found, CompleteGroup)
    assert ([fact.member for fact in found.members], found.first_sequence) == ([0, 1], 5)
    assert one.shorten(OTHER, 2, 20) is None
    assert (one.num_open, one.open_groups, one.first_unsettled_sequence) == (1, (), 5)
    one.add(member(0, 21, group_id=OTHER))
    found = one.add(member(1, 22, group_id=OTHER))
    assert isinstance(found, CompleteGroup)
    assert found.first_sequence == 20


def test_an_older_count_of_members_does_not_make_a_group_wait_for_more() -> None:
    one = assembler()
    one.shorten(GROUP, 2, 1)
    one.shorten(GROUP, 3, 2)
    one.add(member(0, 3))
    assert isinstance(one.add(member(1, 4)), CompleteGroup)


def test_a_group_of_half_of_its_members_trains_and_a_smaller_one_is_too_short() -> None:
    assert isinstance(ended((0, 1)), CompleteGroup)
    assert refused(ended((1,)), GroupReason.SHORT_GROUP) == "1 members, at least 2 are needed"
    none_left = assembler().shorten(GROUP, 0, 1)
    assert none_left is not None
    assert refused(none_left, GroupReason.SHORT_GROUP) == "0 members, at least 2 are needed"


@pytest.mark.parametrize("change", [{"may_train": False}, {"task_digest": "digest-held-out"}])
def test_a_member_of_a_held_out_task_excludes_the_group_by_name(change: dict[str, Any]) -> None:
    digest = change.get("task_digest", "digest-of-a-task")[:12]
    said = f"traj-{GROUP}-e1 is of held-out task {digest}"
    assert refused(ended(at=1, **change), GroupReason.HELD_OUT) == said


def test_a_run_that_draws_from_a_held_out_taskset_trains_no_group() -> None:
    one = assembler(held_out_split=True)
    found = [one.add(member(number, number)) for number in range(4)][-1]
    assert found is not None
    assert refused(found, GroupReason.HELD_OUT) == f"traj-{GROUP}-e0 is of held-out task digest-of-a-"


def test_a_held_out_task_is_named_before_anything_else_that_is_wrong() -> None:
    refused(ended((1,), at=1, may_train=False), GroupReason.HELD_OUT)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_quarantines_the_group(reward: float) -> None:
    said = f"traj-{GROUP}-e3 has reward {reward}, group size 4"
    assert refused(ended(reward=reward), GroupReason.QUARANTINED) == said


@pytest.mark.parametrize(("number", "size"), [(4, 4), (-1, 4), (3, 5), (2, 3)])
def test_a_member_that_the_group_cannot_have_quarantines_it(number: int, size: int) -> None:
    found = ended((0, 1, number), at=number, group_size=size)
    said = f"traj-{GROUP}-e{number} has reward {number % 2:.1f}, group size {size}"
    assert refused(found, GroupReason.QUARANTINED) == said


def test_equal_rewards_have_nothing_to_teach() -> None:
    assert refused(ended((0, 2)), GroupReason.ZERO_SPREAD) == "all 2 rewards are 0"
    assert refused(ended((1, 3)), GroupReason.ZERO_SPREAD) == "all 2 rewards are 1"
    assert isinstance(ended((0, 2), at=2, reward=0.001), CompleteGroup)


def test_a_run_from_version_0_takes_offered_groups_of_that_version_alone() -> None:
    one = GroupAssembler(SPEC, SettledGroups(RUN))
    members = tuple(member(number, 5, group_id="run-2-g00000", run_id="run-2") for number in range(2))
    offered = OfferedGroup("run-2-g00000", "run-2", 4, True, members, 5)
    found = one.offer(offered)
    assert isinstance(found, CompleteGroup)
    assert found.effective_version == 0
    assert one.first_unsettled_sequence == 5
    assert one.offer(dataclasses.replace(offered, sequence=9)) is None
    assert one.first_unsettled_sequence == 5
    later = tuple(dataclasses.replace(fact, oldest_version=1, newest_version=1) for fact in members)
    refusal = one.offer(dataclasses.replace(offered, group_id="run-2-g00001", members=later))
    assert isinstance(refusal, Settlement)
    assert refusal.reason is GroupReason.VERSION
