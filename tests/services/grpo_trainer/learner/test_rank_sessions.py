"""Whole runs on two ranks: the same versions as on one, and no groups lost with a rank."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import MODEL, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.learners import distance
from tests.support.waiting import until

from grpo_trainer.domain.errors import LostRank
from grpo_trainer.learner.torch_learner import LearnerOptions
from upcycle.api.training.v1 import events_pb2 as events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 3
TWO = LearnerOptions(num_threads=1, ranks=2, rank_deadline_s=60.0)
LAST = f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}"


async def submitted(folder: Path, *, groups: int = 2 * STEPS) -> World:
    """A run with its first groups there. A small learning rate: Adam's first steps magnify what another order
    of summation rounds differently."""
    world = World(folder)
    await world.publish_base()
    world.stream.append(submission(steps=STEPS, learning_rate=1e-4))
    await Episodes(world).groups(range(groups))
    return world


async def test_a_run_on_two_ranks_publishes_what_one_rank_does(tmp_path: Path) -> None:
    alone, shared = await submitted(tmp_path / "alone"), await submitted(tmp_path / "shared")
    async with Trainer(alone):
        await alone.published(LAST, timeout_s=60)
    async with Trainer(shared, options=TWO):
        await shared.published(LAST, timeout_s=100)
    for version in range(1, STEPS + 1):
        assert distance(await alone.weights(version), await shared.weights(version)) <= 1e-6


@pytest.mark.parametrize("steps_before", [pytest.param(0, marks=pytest.mark.study), 1])
async def test_a_run_survives_the_loss_of_a_rank(steps_before: int, tmp_path: Path) -> None:
    world = await submitted(tmp_path / "world", groups=2 * steps_before)
    expected = await submitted(tmp_path / "expected")
    async with Trainer(expected):
        await expected.published(LAST, timeout_s=60)
    async with Trainer(world, options=TWO) as trainer:

        def in_the_middle() -> bool:
            return bool(trainer.ranks) and len(world.recorder.of(events.StepCompleted)) >= steps_before

        await until(in_the_middle, f"step {steps_before}", timeout_s=100)
        os.kill(trainer.ranks[0], signal.SIGKILL)
        await Episodes(world).groups(range(2 * steps_before, 2 * STEPS))
        assert isinstance(await trainer.death(), LostRank)
    async with Trainer(world):
        await world.published(LAST, timeout_s=60)
    assert [one.step for one in world.recorder.of(events.GroupSettled)] == [1, 1, 2, 2, 3, 3]
    assert distance(await world.weights(STEPS), await expected.weights(STEPS)) <= 1e-6
