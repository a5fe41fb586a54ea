"""Property: facts that come twice, late, stale, or in another order within their batch change nothing: the
same weights to the last bit, the same end of every group."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.grpo_trainer.bench import (
    MODEL,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    shortened,
    submission,
)
from tests.services.grpo_trainer.crashes import outcomes, trained_once

from upcycle.api.training.v1 import events_pb2 as events

STEPS = 3
Plan = list[list[Any]]
"""Facts by phase: what belongs to the same batch, and may come in any order."""


async def new_world(folder: Path) -> World:
    world = World(folder)
    await world.publish_base()
    world.stream.append(submission(steps=STEPS, max_staleness=0, checkpoint_every_steps=STEPS))
    return world


async def phases(world: World) -> Plan:
    """Batches of two groups; beside all but the last a flat group, a short one, and one that is stale."""
    episodes = Episodes(world)
    found: Plan = []
    for step in range(STEPS):
        first = 10 * step
        facts: list[Any] = [
            *await episodes.facts(first, (1.0, 0.0, 0.5, 0.0), version=step),
            *await episodes.facts(first + 1, (0.0, 1.0, 0.0, 0.0), version=step),
        ]
        if step < STEPS - 1:
            facts += await episodes.facts(first + 2, (1.0,) * 4, version=step)
            facts += [await episodes.fact(first + 3, 1, 1.0, version=step), shortened(first + 3, 1)]
        if 0 < step < STEPS - 1:
            facts += await episodes.facts(first + 4, (1.0, 0.0, 1.0, 0.0), version=step - 1)
        found.append(facts)
    return found


def disturbed(plan: Plan, seed: int) -> list[list[Any]]:
    """Each phase shuffled and with repeats, of its own facts and of those before it."""
    chance = random.Random(seed)
    disturbed_phases = []
    for at, phase in enumerate(plan):
        facts = [*phase, *chance.sample(phase, chance.randint(0, len(phase)))]
        if at:
            earlier = plan[at - 1]
            facts += chance.sample(earlier, chance.randint(0, len(earlier)))
        chance.shuffle(facts)
        disturbed_phases.append(facts)
    return disturbed_phases


async def play(folder: Path, seed: int | None) -> World:
    """The run; the next phase comes once the step of the one before is announced, as it would."""
    world = await new_world(folder)
    plan = await phases(world)
    async with Trainer(world):
        for step, facts in enumerate(plan if seed is None else disturbed(plan, seed), start=1):
            for fact in facts:
                world.stream.append(fact)
            await world.published(f"policy.published/default/{MODEL}/{step}")
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}")
    return world


@pytest.mark.timeout(300)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_late_repeated_stale_and_reordered_facts_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    asyncio.run(_compare(tmp_path_factory.mktemp("late"), seed))


async def _compare(folder: Path, seed: int) -> None:
    calm, wild = await play(folder / "calm", None), await play(folder / "wild", seed)
    assert _trained(wild) == _trained(calm)
    ends = _sorted_ends(calm)
    assert {reason for _, reason, _, _ in ends.values()} == {"", "zero_spread", "short_group", "stale"}
    assert _sorted_ends(wild) == ends
    trained_once(wild)
    await assert_same_bits(calm, wild, versions=STEPS)


def _trained(world: World) -> list[set[str]]:
    return [set(step.trajectory_ids) for step in world.recorder.of(events.StepCompleted)]


def _sorted_ends(world: World) -> dict[str, tuple[str, str, int, tuple[str, ...]]]:
    return {
        group: (outcome, reason, step, tuple(sorted(episodes)))
        for group, (outcome, reason, step, episodes) in outcomes(world).items()
    }
