"""Batches and steps on values alone: what is cut, what is stale, what a finished step says of itself."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.services.grpo_trainer.fakes import START
from tests.services.grpo_trainer.runs.test_groups import SPEC, member

from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.alarms import AlarmLimits
from grpo_trainer.domain.lengths import Lengths
from grpo_trainer.domain.steps import StepPlan, StepRecord
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement
from grpo_trainer.runs.batches import BatchCutter, Cut

TWO_PER_STEP = dataclasses.replace(
    SPEC, prompts_per_step=2, max_staleness=2, stale_after=2, steps=10, checkpoint_every_steps=4
)


def group(name: str, *versions: int, **changes: Any) -> CompleteGroup:
    members = tuple(
        member(number, 1, group_id=name, oldest_version=version, newest_version=version)
        for number, version in enumerate(versions)
    )
    return CompleteGroup(name, members, 1, **changes)


def cutter(*groups: CompleteGroup) -> BatchCutter:
    found = BatchCutter(TWO_PER_STEP)
    for one in groups:
        found.add(one)
    return found


def read_back(plain: Mapping[str, Any]) -> StepRecord:
    """As part of a training state is: through JSON, then checked."""
    return TypeAdapter(StepRecord).validate_python(json.loads(json.dumps(plain)))


def test_the_first_complete_groups_are_cut_and_stay_until_they_are_removed() -> None:
    first, second, third = group("a", 3, 3), group("b", 4, 3), group("c", 3, 4)
    queue = cutter(first, second, third)
    assert queue.cut(5) == Cut((first, second), ())
    assert list(queue.waiting) == [first, second, third]
    queue.remove("a")
    assert queue.cut(5) == Cut((second, third), ())
    queue.remove("b")
    assert queue.cut(5) == Cut((), ())
    assert list(queue.waiting) == [third]
    queue.remove("c")
    assert queue.num_ready == 0


def test_a_group_past_the_bound_is_dropped_from_the_middle_of_the_queue_and_says_by_how_much() -> None:
    fresh, stale, last = group("a", 3, 3), group("b", 5, 2), group("c", 5, 5)
    queue = cutter(fresh, stale, last)
    settlement = Settlement(
        "b",
        GroupOutcome.EXCLUDED,
        GroupReason.STALE,
        ("b-e0", "b-e1"),
        detail="staleness 3 > stale_after 2 at version 5",
    )
    assert queue.cut(5) == Cut((fresh, last), (settlement,))
    assert list(queue.waiting) == [fresh, last]
    assert queue.cut(6).groups == ()
    assert list(queue.waiting) == [last]


def test_what_was_let_in_waits_far_beyond_the_pace_and_a_group_of_an_evaluation_does_not() -> None:
    own, offered = group("a", 0, 0), group("b", 0, 0, source_run_id="run-2")
    queue = BatchCutter(dataclasses.replace(TWO_PER_STEP, stale_after=0, prompts_per_step=1))
    queue.add(own)
    queue.add(offered)
    assert queue.cut(2) == Cut((own,), ())
    (released,) = queue.cut(3).stale
    assert (released.group_id, released.outcome) == ("b", GroupOutcome.RELEASED)
    assert released.detail == "staleness 3 > max_staleness 2 at version 3"
    assert queue.cut(16) == Cut((own,), ())
    assert queue.stale == Lengths(), "an evaluation drew its tasks by itself"
    (thrown,) = queue.cut(17).stale
    assert thrown.detail == "staleness 17 > stale_after 16 at version 17"
    assert queue.stale == Lengths(2.0, 0.0)


def test_a_run_without_staleness_trains_on_nothing_older() -> None:
    queue = BatchCutter(dataclasses.replace(TWO_PER_STEP, max_staleness=0, stale_after=0))
    queue.add(group("a", 4, 5))
    assert [one.group_id for one in queue.cut(5).stale] == ["a"]


PLAN = StepPlan(
    spec=TWO_PER_STEP,
    step=3,
    version=7,
    groups=(group("a", 7, 5), group("b", 7, 6, 7, source_run_id="run-2")),
    idle_s=1.0,
    parent_checkpoint_id="ckpt-1",
)


def record(learned: dict[str, float] | None = None, **changes: Any) -> StepRecord:
    return dataclasses.replace(PLAN, **changes).record(learned or {}, at=START, traceparent="00-trace")


def test_a_record_says_what_was_trained_and_how_old_it_was() -> None:
    found = record()
    trained = GroupOutcome.TRAINED, GroupReason.NONE
    assert dataclasses.replace(found, metrics={}) == StepRecord(
        step=3,
        version=8,
        trajectory_ids=("traj-a-e0", "traj-a-e1", "traj-b-e0", "traj-b-e1", "traj-b-e2"),
        settlements=(
            Settlement("a", *trained, ("a-e0", "a-e1"), 3),
            Settlement("b", *trained, ("b-e0", "b-e1", "b-e2"), 3, source_run_id="run-2"),
        ),
        metrics={},
        staleness={0: 3, 1: 1, 2: 1},
        completed_at=START,
        traceparent="00-trace",
        saves_checkpoint=False,
        is_final=False,
        parent_checkpoint_id="ckpt-1",
    )
    assert list(found.staleness) == [0, 1, 2]


def test_metrics_are_those_of_the_learner_and_means_over_trajectories() -> None:
    cut_off = group("c", 7, 7)
    cut_off = dataclasses.replace(
        cut_off,
        members=(*cut_off.members, member(3, 1, group_id="c", reward=0.5, cut_off=True, oldest_version=4)),
    )
    learned = {"loss": 0.25, "learner_s": 2.0, "stall_s": 1.0, "reward_mean": -1.0}
    metrics = record(learned, groups=(cut_off, group("d", 7)), idle_s=2.0).metrics
    measured = {
        "loss": 0.25,
        "learner_s": 2.0,
        "stall_s": 1.0,
        "reward_mean": (0 + 1 + 0.5 + 0) / 4,
        "success_rate": 2 / 4,
        "staleness_max": 3.0,
        "no_eos_fraction": 1 / 4,
        "trajectories": 4.0,
        "idle_s": 2.0,
        "idle_fraction": 2 / (2 + 2 + 1),
    }
    assert {name: metrics[name] for name in measured} == measured


def test_rates_are_those_of_what_the_policy_did_without_guidance() -> None:
    """By hand: rewards 0 and 1 by itself; 1, 1, 0.5 with guidance, two of them successes."""
    itself = group("c", 7, 7)
    rewards = enumerate((1.0, 1.0, 0.5))
    alike = [member(n, 1, group_id="d", reward=reward, guided=True) for n, reward in rewards]
    alike = [dataclasses.replace(one, success=one.reward == 1.0) for one in alike]
    guided = dataclasses.replace(group("d", 7), members=tuple(alike))
    metrics = record(groups=(itself, guided)).metrics
    assert (metrics["reward_mean"], metrics["success_rate"]) == (0.5, 0.5)
    assert metrics["guided_fraction"] == 3 / 5
    assert metrics["guided_success_rate"] == pytest.approx(2 / 3)
    assert metrics["trajectories"] == 5.0, "all of them train"
    assert not [name for name in metrics if ":" in name], "guidance that says no kind is of none"
    kinds = (("plan",), ("plan", "hint"), ("hint",))
    by = [dataclasses.replace(one, guidance_kinds=kind) for one, kind in zip(alike, kinds, strict=True)]
    apart = record(groups=(itself, dataclasses.replace(guided, members=tuple(by)))).metrics
    assert {name: value for name, value in apart.items() if ":" in name} == {
        "guided_fraction:hint": 2 / 5,
        "guided_success_rate:hint": 0.5,
        "guided_fraction:plan": 2 / 5,
        "guided_success_rate:plan": 1.0,
    }
    alone = record(groups=(guided,)).metrics
    assert alone["success_rate"] == pytest.approx(2 / 3)
    assert alone["guided_fraction"] == 1.0
    assert "guided_fraction" not in record(groups=(itself,)).metrics


def test_a_step_of_a_run_on_several_tasksets_says_what_each_gave() -> None:
    """By hand: of `a` rewards 0, 1, 0, 1; of `b` one guided group; of `c` nothing; one of an unknown."""
    spec = dataclasses.replace(TWO_PER_STEP, tasksets=("a", "b", "c"))
    of_a = [of_taskset(group(name, 7, 7), "a") for name in ("g", "h")]
    guided = of_taskset(group("i", 7, 7), "b", guided=True)
    metrics = record(spec=spec, groups=(*of_a, guided, group("j", 7, 7))).metrics
    assert {name: value for name, value in metrics.items() if ":" in name} == {
        "groups:a": 2.0,
        "reward_mean:a": 0.5,
        "success_rate:a": 0.5,
        "groups:b": 1.0,
        "groups:c": 0.0,
    }
    assert not [name for name in record(groups=of_a).metrics if ":" in name], "of one taskset it is no news"


def of_taskset(made: CompleteGroup, taskset: str, *, guided: bool = False) -> CompleteGroup:
    members = [dataclasses.replace(one, taskset=taskset, guided=guided) for one in made.members]
    return dataclasses.replace(made, members=tuple(members))


def test_a_trainer_that_measured_no_time_of_the_learner_was_idle_throughout_or_not_at_all() -> None:
    assert record(idle_s=0.5).metrics["idle_fraction"] == 1.0
    assert record(idle_s=0.0).metrics["idle_fraction"] == 0.0
    assert record(idle_s=5e-10).metrics["idle_fraction"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("step", "saves", "final"), [(3, False, False), (4, True, False), (8, True, False), (10, True, True)]
)
def test_every_fourth_step_and_the_last_save_a_checkpoint(step: int, saves: bool, final: bool) -> None:
    found = record(step=step)
    assert (found.saves_checkpoint, found.is_final) == (saves, final)


def test_seconds_of_the_trainer_are_those_of_all_steps_so_far() -> None:
    assert record({}).metrics["trainer_s"] == 0.0
    assert record({"rank_s": 1.5}).metrics["trainer_s"] == 1.5
    assert record({"rank_s": 1.5}, before={"trainer_s": 4.0}).metrics["trainer_s"] == 5.5


def test_alarms_go_on_from_the_step_before_under_the_limits_of_the_plan() -> None:
    before = {"mismatch_kl_streak": 1.0, "decision_entropy_start": 2.0}
    limits = AlarmLimits(updates=2, mismatch_kl=0.3, entropy_share=0.25)
    learned = {"mismatch_kl": 0.4, "decision_entropy": 0.4}
    metrics = record(learned, before=before, limits=limits).metrics
    assert (metrics["mismatch_kl_streak"], metrics["alarm_mismatch_kl"]) == (2.0, 3.0)
    assert (metrics["decision_entropy_start"], metrics["entropy_low_streak"]) == (2.0, 1.0)
    assert metrics["age_limit"] == 6.0, "twice the pace of max_staleness 2"
    assert record(learned, before=before).metrics["alarm_mismatch_kl"] == 0.0, "2 of 8 updates"
    assert record(learned, limits=limits).metrics["mismatch_kl_streak"] == 1.0


def test_a_record_is_read_back_from_plain_values_as_it_was() -> None:
    before = record({"loss": 0.25})
    plain = before.to_json()
    assert plain["completed_at"] == START.isoformat()
    assert plain["staleness"] == {"0": 3, "1": 1, "2": 1}
    assert "source_run_id" not in plain["settlements"][0]
    assert plain["settlements"][1]["source_run_id"] == "run-2"
    back = read_back(plain)
    assert back == before
    assert back.to_json() == plain
    assert type(back.settlements[0].outcome) is GroupOutcome
    assert type(back.settlements[0].reason) is GroupReason
    assert back.sources == {"run-2": 1}


def test_a_settlement_is_read_back_with_its_reason_and_detail() -> None:
    left_out = Settlement("c", GroupOutcome.EXCLUDED, GroupReason.STALE, ("c-e0",), 0, "too old")
    before = dataclasses.replace(record(), settlements=(left_out,))
    assert read_back(before.to_json()).settlements == (left_out,)
