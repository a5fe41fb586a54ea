"""A crash at every durable write of a run that draws from evaluations: a restart ends in the same bits, each
offered group ends once and alike, and none has two gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import (
    MIXED,
    MODEL,
    Episodes,
    World,
    assert_same_bits,
    shortened,
    submission,
)
from tests.services.grpo_trainer.crashes import outcomes, recorded, restarted, trained_once
from tests.services.grpo_trainer.evaluations import EVALUATION, Evaluation

from upcycle.api.training.v1 import events_pb2 as events

STEPS = 3
LAST = f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}"
REASONS = {"", "stale", "zero_spread", "short_group", "version", "quarantined"}


async def new_world(folder: Path) -> World:
    """Own and offered groups of several sizes, interleaved; offers that are repeated, flat, of a foreign
    version, damaged and too old; an own group that is too short."""
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
    world.stream.append(await episodes.fact(10, 1, 1.0))
    world.stream.append(shortened(10, 1))
    return world


def sources(world: World) -> list[dict[str, int]]:
    return [dict(one.sources) for one in world.recorder.of(events.CheckpointSaved)]


@pytest.mark.timeout(300)
async def test_a_kill_at_any_write_ends_in_the_same_bits_and_trains_nothing_twice(tmp_path: Path) -> None:
    whole = await new_world(tmp_path)
    left_behind = await recorded(whole, LAST)
    ends = outcomes(whole)
    assert {reason for _, reason, _, _ in ends.values()} == REASONS
    assert [step for _, _, step, _ in ends.values()].count(0) == 5
    assert sources(whole) == [{EVALUATION: 2, "run-0000000000e2": 1}, {EVALUATION: 3, "run-0000000000e2": 1}]
    assert len(left_behind) > 25
    for number, killed in enumerate(left_behind, 1):
        world = await restarted(killed, LAST)
        await assert_same_bits(whole, world, versions=STEPS)
        assert (outcomes(world), sources(world)) == (ends, sources(whole)), f"killed before write {number}"
        trained_once(world)
