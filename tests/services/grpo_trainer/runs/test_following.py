"""A learning rate that falls and a KL weight that grows with the success of a run: by hand, on a run, and
alike after each restart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import Episodes, Trainer, World, assert_same_bits, submission
from tests.services.grpo_trainer.runs.test_groups import SPEC

from grpo_trainer.domain.following import UNSCALED, Scales, following_metrics, scales
from grpo_trainer.domain.spec import TrainingSpec
from upcycle.api.training.v1 import events_pb2 as events

OPTIONS: dict[str, Any] = {
    "lr_schedule": "constant",
    "lr_success_decay": 0.5,
    "kl_success_growth": 2.0,
    "loss_config": {"kl_coefficient": 0.1},
}
STEPS = ((1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 0.0), (1.0, 0.0, 0.0, 0.0))
"""Rewards of the one group of each step: success of 50, 75 and 25 %."""


def spec(**changes: Any) -> TrainingSpec:
    return dataclasses.replace(SPEC, **{**OPTIONS, **changes})


def test_the_first_step_is_as_the_schedule_says_and_later_ones_follow_the_smoothed_success() -> None:
    before: dict[str, float] = {}
    found = []
    for success in (0.5, 0.75, None, 1.0):
        found.append(scales(spec(), before))
        before = following_metrics(spec(), before, success)
    assert found == [UNSCALED, Scales(0.75, 2.0), Scales(0.725, 2.1), Scales(0.725, 2.1)]
    assert before == {"success_smoothed": pytest.approx(0.64)}


def test_a_run_without_the_options_measures_and_scales_nothing() -> None:
    assert following_metrics(SPEC, {"success_smoothed": 0.5}, 1.0) == {}
    assert scales(SPEC, {"success_smoothed": 0.5}) == UNSCALED


def test_before_any_episode_ended_nothing_is_remembered() -> None:
    assert following_metrics(spec(), {}, None) == {}


async def trained(world: World, *, processes: int) -> list[dict[str, float]]:
    """Metrics of the steps. processes: that share them, one after the other."""
    await world.publish_base()
    world.stream.append(submission(steps=len(STEPS), prompts_per_step=1, **OPTIONS))
    parts = [range(len(STEPS))] if processes == 1 else [range(at, at + 1) for at in range(len(STEPS))]
    for part in parts:
        async with Trainer(world):
            for index in part:
                await Episodes(world).group(index, STEPS[index])
                await world.published(f"step.completed/run-0000000000ab/{index + 1}")
    return [dict(one.metrics.values) for one in world.recorder.of(events.StepCompleted)]


async def test_rate_and_weight_of_a_run_follow_its_success_also_over_restarts(tmp_path: Path) -> None:
    whole, restarted = World(tmp_path / "whole"), World(tmp_path / "restarted")
    found = await trained(whole, processes=1)
    assert [one["success_smoothed"] for one in found] == pytest.approx([0.5, 0.55, 0.49])
    assert [one["learning_rate"] for one in found] == pytest.approx([1e-2, 0.75e-2, 0.725e-2])
    assert [one["kl_weight"] for one in found] == pytest.approx([0.1, 0.2, 0.21])
    await trained(restarted, processes=len(STEPS))
    await assert_same_bits(whole, restarted, versions=len(STEPS))
