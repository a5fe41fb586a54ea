"""Group assembler, batch cutter and the set of settled groups, as properties over any order of facts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blob_store import BlobRef
from episodes import GroupReason
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.offers import Completion
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.runs.batches import BatchCutter
from grpo_trainer.runs.groups import GroupAssembler

RUN = "run-1"
SIZE = 4


def spec(**changes: object) -> TrainingSpec:
    given: dict[str, Any] = {"group_size": SIZE, "prompts_per_step": 2, "max_staleness": 2, **changes}
    given["stale_after"] = max(0, given["max_staleness"])
    return training_spec(run_id=RUN, model="m", **given)


def graded(index: int, member: int, reward: float, sequence: int, version: int = 0) -> GradedTrajectory:
    group_id = f"{RUN}-g{index:05d}"
    return GradedTrajectory(
        trajectory_id=f"traj-{group_id}-e{member:03d}-a0",
        episode_id=f"{group_id}-e{member:03d}-a0",
        run_id=RUN,
        group_id=group_id,
        member=member,
        group_size=SIZE,
        reward=reward,
        success=reward > 0,
        body=BlobRef("k", "s", 1),
        oldest_version=version,
        newest_version=version,
        task_digest=f"d{index}",
        may_train=True,
        sequence=sequence,
        trace_headers={},
    )


def feed(assembler: GroupAssembler, facts: Sequence[tuple[int, int]]) -> list[Completion]:
    """Facts (group, member) in this order; reward follows from both."""
    completions = []
    for sequence, (index, member) in enumerate(facts, start=1):
        done = assembler.add(graded(index, member, reward(index, member), sequence))
        if done is not None:
            completions.append(done)
    return completions


def reward(index: int, member: int) -> float:
    return 1.0 if index % 3 == 0 else float(member % 2)  # every third group has no spread


orders = st.integers(1, 5).flatmap(
    lambda groups: st.permutations([(g, m) for g in range(groups) for m in range(SIZE)])
)


@given(order=orders, repeats=st.lists(st.integers(0, 19), max_size=10))
def test_each_group_leaves_once_whatever_the_order_and_the_repeats(
    order: list[tuple[int, int]], repeats: list[int]
) -> None:
    noisy = [*order, *(order[at % len(order)] for at in repeats)]
    completions = feed(GroupAssembler(spec(), SettledGroups(RUN)), noisy)
    by_group = {one.group_id: one for one in completions}
    assert len(by_group) == len(completions) == len({index for index, _ in order})
    for group_id, one in by_group.items():
        flat = int(group_id[-5:]) % 3 == 0
        assert isinstance(one, Settlement if flat else CompleteGroup)
        assert len(one.episode_ids) == SIZE
        assert list(one.episode_ids) == sorted(one.episode_ids)


@given(order=orders)
def test_the_cursor_never_passes_an_unsettled_group(order: list[tuple[int, int]]) -> None:
    settled = SettledGroups(RUN)
    assembler = GroupAssembler(spec(), settled)
    first_seen: dict[str, int] = {}
    for sequence, (index, member) in enumerate(order, start=1):
        first_seen.setdefault(f"{RUN}-g{index:05d}", sequence)
        done = assembler.add(graded(index, member, reward(index, member), sequence))
        if done is not None and index % 2 == 0:
            assembler.settle(done.group_id)
        unsettled = [seq for group_id, seq in first_seen.items() if group_id not in settled]
        assert assembler.first_unsettled_sequence == min(unsettled, default=None)


@given(order=orders, cut=st.integers(0, 20))
def test_a_replay_from_the_cursor_finds_what_was_left(order: list[tuple[int, int]], cut: int) -> None:
    whole = feed(GroupAssembler(spec(), SettledGroups(RUN)), order)
    settled = SettledGroups(RUN)
    before = GroupAssembler(spec(), settled)
    early = feed(before, order[:cut])
    for one in early[: len(early) // 2]:
        before.settle(one.group_id)
    cursor = (before.first_unsettled_sequence or cut + 1) - 1
    again = GroupAssembler(spec(), SettledGroups.from_json(RUN, settled.to_json()))
    late = []
    for sequence, (index, member) in enumerate(order[cursor:], start=cursor + 1):
        done = again.add(graded(index, member, reward(index, member), sequence))
        if done is not None:
            late.append(done)
    found = {one.group_id for one in early[: len(early) // 2]} | {one.group_id for one in late}
    assert found == {one.group_id for one in whole}
    assert len(late) + len(early) // 2 == len(whole)


@given(
    indexes=st.lists(st.integers(0, 60), max_size=80), names=st.lists(st.sampled_from(["a", "run-2-g00001"]))
)
def test_settled_groups_are_a_set_that_survives_storage(indexes: list[int], names: list[str]) -> None:
    settled = SettledGroups(RUN)
    ids = {f"{RUN}-g{index:05d}" for index in indexes} | set(names)
    settled.update([*(f"{RUN}-g{index:05d}" for index in indexes), *names])
    back = SettledGroups.from_json(RUN, settled.to_json())
    for one in (settled, back):
        assert len(one) == len(ids)
        assert all(group_id in one for group_id in ids)
        assert not any(
            f"{RUN}-g{index:05d}" in one for index in range(62) if f"{RUN}-g{index:05d}" not in ids
        )
    ranges = settled.to_json()["ranges"]
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))


def complete(index: int, version: int) -> CompleteGroup:
    members = tuple(graded(index, m, float(m), 10 * index + m + 1, version) for m in range(SIZE))
    return CompleteGroup(members[0].group_id, members, members[0].sequence)


@given(versions=st.lists(st.integers(0, 8), max_size=12), training=st.integers(0, 8), bound=st.integers(0, 4))
def test_no_cut_batch_holds_a_token_older_than_the_bound(
    versions: list[int], training: int, bound: int
) -> None:
    cutter = BatchCutter(spec(max_staleness=bound))
    for index, version in enumerate(versions):
        cutter.add(complete(index, version))
    cut = cutter.cut(training)
    assert all(training - group.effective_version <= bound for group in cut.groups)
    fresh = [index for index, version in enumerate(versions) if training - version <= bound]
    assert len(cut.stale) == len(versions) - len(fresh)
    assert {one.reason for one in cut.stale} <= {GroupReason.STALE}
    wanted = fresh[:2] if len(fresh) >= 2 else []
    assert [group.group_id for group in cut.groups] == [f"{RUN}-g{index:05d}" for index in wanted]
    assert cutter.num_ready == len(fresh)


def test_a_group_is_as_old_as_its_oldest_member() -> None:
    cutter = BatchCutter(spec(prompts_per_step=1))
    mixed = complete(0, 5)
    old = dataclasses.replace(mixed.members[2], oldest_version=1)
    cutter.add(dataclasses.replace(mixed, members=(*mixed.members[:2], old, mixed.members[3])))
    assert [one.reason for one in cutter.cut(4).stale] == [GroupReason.STALE]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": -1}, "steps must be >= 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0 and <= 10, got nan"),
        ({"adam_beta2": 1.0}, "adam_beta2 must be >= 0 and < 1, got 1"),
        ({"max_staleness": -1}, "max_staleness must be >= 0"),
    ],
)
def test_a_spec_that_cannot_be_trained_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidTrainingSpec, match=said):
        spec(**change)


def test_the_digest_of_a_spec_changes_with_any_field() -> None:
    assert spec().digest() == spec().digest()
    assert spec(seed=1).digest() != spec().digest()
    assert spec(loss_config={"clip_high": 0.3}).digest() != spec().digest()
