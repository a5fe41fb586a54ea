"""A group that the trainer has settled, and hears of again: its settlement was lost, and is published
again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, refused, submission

from grpo_trainer.domain.states import SessionPhase


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A run of two steps of two groups."""
    found = World(tmp_path)
    await found.publish_base()
    found.stream.append(submission(steps=2, max_staleness=0))
    return found


async def published_after(world: World, before: int, event_id: str) -> None:
    """Wait until the trainer publishes it once more."""
    async with asyncio.timeout(20):
        while event_id not in world.recorder.order[before:]:
            world.recorder.published.clear()
            await world.recorder.published.wait()


async def test_the_settlements_of_every_step_and_of_what_was_excluded_are_published_again(
    world: World,
) -> None:
    """Also of a run whose last step is taken: without them the planner would wait for ever."""
    episodes = Episodes(world)
    facts = {0: await episodes.facts(0, (1.0,) * 4)}
    for step in (1, 2):
        for index in (2 * step, 2 * step + 1):
            facts[index] = await episodes.facts(index, (1.0, 0.0, 0.0, 1.0), version=step - 1)
    async with Trainer(world) as trainer:
        for index, group in facts.items():
            if index == 4:
                await world.published(f"policy.published/default/{MODEL}/1")
            for fact in group:
                world.stream.append(fact)
        await world.published(f"policy.published/default/{MODEL}/2")
        session = trainer.sessions.get(RUN)
        async with asyncio.timeout(20), session.changed:  # until all of step 2 is published
            await session.changed.wait_for(lambda: session.phase is SessionPhase.FINISHED)
        for index, group in facts.items():
            before = len(world.recorder.order)
            world.stream.append(group[0])
            await published_after(world, before, f"group.settled/{RUN}-g{index:05d}")
    settled = [key for key in world.recorder.events if key.startswith("group.settled/")]
    assert len(settled) == 5


async def test_another_process_answers_of_the_last_step_and_of_what_was_settled_before_it(
    world: World,
) -> None:
    """Group 0 was excluded, 1 and 2 are the step. The stream of decisions has the ends of all."""
    episodes = Episodes(world)
    excluded = await episodes.facts(0, (1.0,) * 4)
    trained = await episodes.facts(1, (1.0, 0.0, 0.0, 1.0))
    async with Trainer(world):
        for fact in [*excluded, *trained]:
            world.stream.append(fact)
        await episodes.group(2, (1.0, 0.0, 0.0, 1.0))
        await world.published(f"policy.published/default/{MODEL}/1")
    async with Trainer(world):
        await refused(world, "run-marker")  # it has published its state, and read all facts
        for index, fact in enumerate((excluded[0], trained[0])):
            before = len(world.recorder.order)
            world.stream.append(fact)
            await published_after(world, before, f"group.settled/{RUN}-g{index:05d}")


async def test_a_replay_after_a_restart_answers_nothing(world: World) -> None:
    """Its facts were answered before: only who tells of a group again has not read its end."""
    episodes = Episodes(world)
    async with Trainer(world):
        world.stream.append((await episodes.facts(7, (1.0, 0.0, 0.0, 1.0)))[0])  # holds the cursor back
        await episodes.group(0, (1.0,) * 4)
        for index in (1, 2):
            await episodes.group(index, (1.0, 0.0, 0.0, 1.0))
        await world.published(f"policy.published/default/{MODEL}/1")
    before = world.recorder.order.count(f"group.settled/{RUN}-g00000")
    async with Trainer(world):
        await refused(world, "run-marker")
    assert world.recorder.order.count(f"group.settled/{RUN}-g00000") == before == 1


async def test_a_group_that_is_not_settled_is_not_published(world: World) -> None:
    """A repeated grade of a group that waits for the rest of its batch."""
    episodes = Episodes(world)
    facts = await episodes.facts(0, (1.0, 0.0, 0.0, 1.0))
    async with Trainer(world):
        for fact in [*facts, *facts]:
            world.stream.append(fact)
        await refused(world, "run-marker")
        assert not [key for key in world.recorder.order if key.startswith("group.settled/")]
