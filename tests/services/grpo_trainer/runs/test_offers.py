"""What a run takes of evaluations, and why it leaves the rest: values only, no bus and no learner."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.services.grpo_trainer.fakes import START

from blob_store import BlobRef
from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.offers import Ancestor, Lineage, OfferedGroup
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState, state_from_json
from grpo_trainer.domain.steps import StepPlan, StepRecord
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.runs.batches import BatchCutter
from grpo_trainer.runs.groups import GroupAssembler
from grpo_trainer.wire import step_completed

RUN, EVALUATION = "run-1", "run-2"
SPEC = TrainingSpec(RUN, "m", 4, prompts_per_step=2, max_staleness=2)
# The run began from version 7, whose number in the run is 9; 7 was trained from 6, and 6 from 3.
LINEAGE = Lineage(7, 9, (Ancestor(6, same_tokenizer=True), Ancestor(3, same_tokenizer=False)))


def member(index: int, number: int, reward: float, **changes: Any) -> GradedTrajectory:
    name = f"{EVALUATION}-g{index:05d}-e{number:03d}-a0"
    version = changes.pop("version", 7)
    plain = GradedTrajectory(
        trajectory_id=f"traj-{name}",
        episode_id=name,
        run_id=EVALUATION,
        group_id=f"{EVALUATION}-g{index:05d}",
        member=number,
        group_size=8,
        reward=reward,
        success=reward > 0,
        body=BlobRef("k", "s", 1),
        oldest_version=version,
        newest_version=version,
        task_digest=f"digest-{index}",
        may_train=True,
        sequence=5,
        trace_headers={},
        offered=True,
    )
    return dataclasses.replace(plain, **changes)


def group(
    index: int = 0,
    *,
    rewards: Sequence[float] = (0.0, 1.0) * 4,
    before_start: bool = True,
    sequence: int = 5,
    **changes: Any,
) -> OfferedGroup:
    members = tuple(member(index, number, reward, **changes) for number, reward in enumerate(rewards))
    group_id = f"{EVALUATION}-g{index:05d}"
    return OfferedGroup(group_id, EVALUATION, max(len(rewards), 1), before_start, members, sequence)


def assembler(**changes: Any) -> GroupAssembler:
    spec = dataclasses.replace(SPEC, **changes)
    return GroupAssembler(spec, SettledGroups(RUN), {"digest-66"}, LINEAGE)


def released(offer: OfferedGroup, **changes: Any) -> Settlement:
    found = assembler(**changes).offer(offer)
    assert isinstance(found, Settlement)
    assert (found.outcome, found.source_run_id, found.step) == (GroupOutcome.RELEASED, EVALUATION, 0)
    assert found.label == f"released({found.reason.value})"
    assert set(found.episode_ids) == {one.episode_id for one in offer.members}
    return found


def taken(offer: OfferedGroup) -> CompleteGroup:
    found = assembler().offer(offer)
    assert isinstance(found, CompleteGroup)
    return found


def with_member(offer: OfferedGroup, at: int, **changes: Any) -> OfferedGroup:
    members = list(offer.members)
    members[at] = dataclasses.replace(members[at], **changes)
    return dataclasses.replace(offer, members=tuple(members))


def test_a_group_of_another_size_leaves_whole_and_in_order() -> None:
    offer = group()
    found = taken(dataclasses.replace(offer, members=offer.members[::-1]))
    assert [one.member for one in found.members] == list(range(8))
    assert (found.source_run_id, found.first_sequence) == (EVALUATION, 5)


def test_an_offer_that_is_repeated_or_settled_changes_nothing() -> None:
    one = assembler()
    assert one.offer(group(0)) is not None
    assert one.first_unsettled_sequence == 5
    assert one.offer(group(0, sequence=9)) is None
    assert one.first_unsettled_sequence == 5
    one.settle(f"{EVALUATION}-g00000")
    assert one.first_unsettled_sequence is None
    assert one.offer(group(0, sequence=12)) is None


UNFIT = [
    (group(may_train=False), GroupReason.HELD_OUT),
    (group(66), GroupReason.HELD_OUT),
    (group(rewards=[]), GroupReason.QUARANTINED),
    (with_member(group(), 3, member=2), GroupReason.QUARANTINED),
    (with_member(group(), 3, trajectory_id=group().members[2].trajectory_id), GroupReason.QUARANTINED),
    (with_member(group(), 3, episode_id=group().members[2].episode_id), GroupReason.QUARANTINED),
    (with_member(group(), 3, reward=math.nan), GroupReason.QUARANTINED),
    (with_member(group(), 3, reward=math.inf), GroupReason.QUARANTINED),
    (with_member(group(), 7, member=8), GroupReason.QUARANTINED),
    (with_member(group(), 0, member=-1), GroupReason.QUARANTINED),
    (group(rewards=[1.0]), GroupReason.SHORT_GROUP),
    (group(rewards=[1.0] * 8), GroupReason.ZERO_SPREAD),
    (group(version=5), GroupReason.VERSION),
    (group(version=3), GroupReason.TOKENIZER),
    (with_member(group(), 3, newest_version=8), GroupReason.VERSION),
]


@pytest.mark.parametrize(("offer", "reason"), UNFIT)
def test_what_cannot_train_is_released_at_once_with_its_reason(
    offer: OfferedGroup, reason: GroupReason
) -> None:
    assert released(offer).reason is reason


def test_a_run_of_a_held_out_taskset_trains_no_offer() -> None:
    assert released(group(), held_out_split=True).reason is GroupReason.HELD_OUT


def test_a_group_that_could_make_a_step_too_large_is_released_and_one_that_cannot_is_taken() -> None:
    # 256 prompts of at most 8 trajectories are 2048; of 9 they would be 2304.
    assert isinstance(assembler(prompts_per_step=256).offer(group()), CompleteGroup)
    found = released(group(rewards=[0.0] * 8 + [1.0]), prompts_per_step=256)
    assert found.reason is GroupReason.TOO_LARGE
    assert "2304, limit 2048" in found.detail


@pytest.mark.parametrize(
    ("before_start", "version", "counts_as"),
    [
        (True, 7, 9),
        (True, 6, 8),
        (True, 3, 7),
        (True, 9, None),
        (True, 10, None),
        (True, 5, None),
        (False, 7, 9),
        (False, 9, 9),
        (False, 12, 12),
        (False, 8, None),
        (False, 6, None),
    ],
)
def test_the_version_that_rollouts_are_as_old_as(
    before_start: bool, version: int, counts_as: int | None
) -> None:
    assert LINEAGE.counts_as(version, before_start=before_start) == counts_as


def test_a_run_that_begins_at_a_base_of_the_same_number_counts_back_from_it() -> None:
    lineage = Lineage(4, 4, (Ancestor(2, same_tokenizer=True),))
    assert [lineage.counts_as(one, before_start=True) for one in (4, 2, 3)] == [4, 3, None]
    assert [lineage.counts_as(one, before_start=False) for one in (4, 5, 2)] == [4, 5, None]


def test_staleness_is_counted_from_the_effective_version_and_bodies_are_read_with_the_raw_one() -> None:
    found = taken(with_member(group(version=7), 2, oldest_version=6))
    assert [one.oldest_version for one in found.members] == [7, 7, 6, 7, 7, 7, 7, 7]
    assert [one.effective_version for one in found.members] == [9, 9, 8, 9, 9, 9, 9, 9]
    assert found.effective_version == 8
    record = StepPlan(SPEC, 2, 10, (found,), 0.0, "").record({}, at=START, traceparent="")
    assert record.staleness == {1: 7, 2: 1}
    assert record.metrics["staleness_max"] == 2.0
    assert record.sources == {EVALUATION: 1}
    (settlement,) = record.settlements
    assert (settlement.label, settlement.source_run_id) == ("trained", EVALUATION)


def test_trainer_seconds_are_those_of_all_steps_so_far_and_of_all_ranks() -> None:
    before: dict[str, float] = {}
    said = []
    for step, learned in ((1, {"rank_s": 3.0}), (2, {"rank_s": 2.5}), (3, {})):
        plan = StepPlan(SPEC, step, 9, (taken(group()),), 0.0, "", before)
        record = plan.record(learned, at=START, traceparent="")
        stored = TypeAdapter(StepRecord).validate_json(json.dumps(record.to_json()))  # over a restart
        before = dict(stored.metrics)
        said.append(step_completed(SPEC, record)[0].usage.trainer_s)
    assert said == [3.0, 5.5, 5.5]


def test_a_group_is_stale_by_the_version_that_it_counts_as() -> None:
    cutter = BatchCutter(dataclasses.replace(SPEC, prompts_per_step=1))
    cutter.add(taken(group(version=6)))  # counts as 8
    assert [one.group_id for one in cutter.cut(10).groups] == [f"{EVALUATION}-g00000"]
    (stale,) = cutter.cut(11).stale
    assert stale.label == "released(stale)"
    assert "staleness 3 > max_staleness 2" in stale.detail


def test_groups_of_several_runs_are_ranges_each_and_odd_names_are_kept_by_name() -> None:
    settled = SettledGroups(RUN)
    ids = [f"{run}-g{index:05d}" for run in (RUN, EVALUATION, "run-3") for index in (0, 1, 2, 7)]
    settled.update([*ids, *ids, "run-2-g1", "odd", "run-3-g100000"])
    plain = settled.to_json()
    assert plain == {
        "ranges": [[0, 2], [7, 7]],
        "others": ["odd", "run-2-g1"],
        "sources": {"run-2": [[0, 2], [7, 7]], "run-3": [[0, 2], [7, 7], [100000, 100000]]},
    }
    back = SettledGroups.from_json(RUN, json.loads(json.dumps(plain)))
    assert back.to_json() == plain
    assert len(back) == len(settled) == 15
    assert all(one in back for one in [*ids, "run-2-g1", "odd"])
    assert not any(one in back for one in ("run-2-g00003", "run-4-g00000", "run-2-g2", "run-1-g1"))


def state(**changes: Any) -> SessionState:
    body = BlobRef("k", "s", 1)
    own = CompleteGroup("run-1-g00000", taken(group()).members, 5)
    record = StepPlan(SPEC, 1, 9, (own,), 0.0, "").record({}, at=START, traceparent="")
    plain = SessionState(
        spec=SPEC,
        base=BasePolicy(7, "ckpt-m-v00000007", body),
        first_version=9,
        version=10,
        step=1,
        cursor=3,
        seen=4,
        settled=SettledGroups(RUN).to_json(),
        settled_counts={},
        held_out_tasks=(),
        opened_at=START,
        parent_checkpoint_id="",
        trace_headers={},
        last_step=record,
    )
    return dataclasses.replace(plain, **changes)


def test_a_state_that_an_older_trainer_wrote_is_read_and_written_back_as_it_was() -> None:
    plain = json.loads(json.dumps(state().to_json()))
    assert {"ancestors", "sources"}.isdisjoint(plain)
    assert "sources" not in plain["settled"]
    assert "source_run_id" not in plain["last_step"]["settlements"][0]
    back = state_from_json(plain)
    assert (back.lineage, back.sources) == (Lineage(7, 9), {})
    assert json.loads(json.dumps(back.to_json())) == plain


def test_lineage_and_sources_survive_storage() -> None:
    before = state(ancestors=LINEAGE.ancestors, sources={EVALUATION: 3})
    record = StepPlan(SPEC, 1, 9, (taken(group()),), 0.0, "").record({}, at=START, traceparent="")
    before = dataclasses.replace(before, last_step=record)
    back = state_from_json(json.loads(json.dumps(before.to_json())))
    assert (back.lineage, back.sources) == (LINEAGE, {EVALUATION: 3})
    assert back.last_step is not None
    assert back.last_step.settlements == record.settlements
    assert back.to_json() == before.to_json()
