"""A crash at every durable write of a run that draws from evaluations: a restart ends in the same bits, each
offered group ends once and alike, and none has two gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import (
    MIXED,
    MODEL,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    submission,
)
from tests.services.grpo_trainer.crashes import Fuse, Killed, outcomes, trained_once, wired
from tests.services.grpo_trainer.evaluations import EVALUATION, Evaluation

from upcycle.api.training.v1 import events_pb2 as events

STEPS = 3
LAST = f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}"
REASONS = {"", "stale", "zero_spread", "version", "quarantined"}


async def new_world(folder: Path) -> World:
    """Own and offered groups of several sizes, interleaved; offers that are repeated, flat, of a foreign
    version, damaged and too old."""
    world = World(folder)
    await world.publish_base()
    world.stream.append(
        submission(steps=STEPS, prompts_per_step=2, max_staleness=1, checkpoint_every_steps=2)
    )
    episodes, evaluation = Episodes(world), Evaluation(world)
    other = Evaluation(world, "run-0000000000e2", 2)
    halves = await episodes.facts(0, MIXED)
    first = await evaluation.offer(1, before_start=True)
    for fact in (*halves[:2], first, *halves[2:], first):
        world.stream.append(fact)
    await evaluation.offered(2, (0.0,) * 8)
    await other.offered(3, (1.0, 0.0))
    await evaluation.offered(4, version=7, before_start=True)
    lost = await evaluation.offer(5)
    lost.members[0].body.key = "trajectory/gone"
    world.stream.append(lost)
    await evaluation.offered(6)
    world.stream.append(first)
    await evaluation.offered(7)  # two versions old when the third step looks for groups
    await evaluation.offered(8, version=1)
    await episodes.group(9, MIXED, version=1)
    return world


async def finish(world: World, fuse: Fuse | None = None) -> Fuse:
    """Run a trainer until the run's last fact, or until it is killed."""
    fuse = fuse or Fuse()
    async with Trainer(world, change=wired(fuse)) as trainer:
        if fuse.left is None:
            await world.published(LAST)
        else:
            assert isinstance(await trainer.death(), Killed)
    return fuse


def sources(world: World) -> list[dict[str, int]]:
    return [dict(one.sources) for one in world.recorder.of(events.CheckpointSaved)]


async def assert_ends_alike(whole: World, killed: World, what: str) -> None:
    await assert_same_bits(whole, killed, versions=STEPS)
    assert outcomes(killed) == outcomes(whole), what
    assert sources(killed) == sources(whole), what
    trained_once(killed)


async def killed_at(tmp_path: Path, whole: World, after: int, *, late: bool = False) -> None:
    world = await new_world(tmp_path / f"killed-{after}-{late}")
    await finish(world, Fuse(after, late=late))
    await finish(world)
    await assert_ends_alike(whole, world, f"killed at write {after + 1}, late: {late}")


async def test_a_run_that_draws_from_evaluations_is_killed_and_ends_with_the_same_bits(
    tmp_path: Path,
) -> None:
    whole = await new_world(tmp_path / "whole")
    writes = (await finish(whole)).used
    ends = outcomes(whole)
    assert {reason for _, reason, _, _ in ends.values()} == REASONS
    assert [step for _, _, step, _ in ends.values()].count(0) == 4
    assert sources(whole) == [{EVALUATION: 2, "run-0000000000e2": 1}, {EVALUATION: 3, "run-0000000000e2": 1}]
    for after in range(2, writes - 1, writes // 4):
        await killed_at(tmp_path, whole, after, late=after % 2 == 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_kill_at_any_write_of_such_a_run_changes_nothing(tmp_path: Path) -> None:
    whole = await new_world(tmp_path / "whole")
    writes = (await finish(whole)).used
    assert writes > 25
    for after in range(writes):
        # A write that was done and not heard of is the same to a restart as a kill before the next one.
        await killed_at(tmp_path, whole, after, late=after % 3 == 1 and after < writes - 1)
