"""A trainer process starts from what the processes before it wrote of their open runs, and does not list the
folders of every run that ever trained."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.services.grpo_trainer.bench import (
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    submission,
)
from tests.services.grpo_trainer.crashes import trained_once
from tests.services.grpo_trainer.runs.test_cancelled_runs import CLOSED, over
from tests.services.grpo_trainer.runs.test_elsewhere import without_claims
from tests.services.grpo_trainer.runs.test_reopening import LAST, STEPS, Sleeper, new_world
from tests.services.grpo_trainer.runs.test_take_over import whole
from tests.support.waiting import until

from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.errors import RanksGone
from grpo_trainer.domain.trainers import StartingPoint, TrainerRecord, latest_starting_point
from grpo_trainer.runs.deps import RunDeps
from identities.objects import parse_trainer_process

OPEN = ((MODEL, RUN),)


class Listings:
    """Counts how often a trainer lists the folders of all runs."""

    def __init__(self) -> None:
        self.count = 0

    def change(self, deps: RunDeps) -> RunDeps:
        listed = deps.states.open_runs

        async def counted() -> list[tuple[str, str]]:
            self.count += 1
            return await listed()

        vars(deps.states)["open_runs"] = counted
        return deps


async def records(world: World) -> Collection[TrainerRecord]:
    return (await TrainersStore(world.store).look()).records.values()


async def test_the_first_process_lists_the_folders_and_those_after_it_do_not(tmp_path: Path) -> None:
    world, listings = await new_world(tmp_path / "one"), Listings()
    episodes = Episodes(world)
    await episodes.groups(range(1))
    async with Trainer(world, change=listings.change):
        await world.published(f"step.completed/{RUN}/1")
    assert listings.count == 1
    await episodes.groups(range(1, STEPS))
    async with Trainer(world, change=listings.change):
        await world.published(LAST)
    assert listings.count == 1
    trained_once(world)
    await assert_same_bits(await whole(tmp_path / "whole"), world, versions=STEPS)


async def test_a_run_without_a_state_is_found_by_every_process_after_the_first(tmp_path: Path) -> None:
    """Each reads its run.submitted, and ends before anything is durable: the next one must read it, too."""
    world = await new_world(tmp_path)
    for _ in range(3):
        async with Trainer(world, change=without_claims) as trainer:
            await until(lambda trainer=trainer: trainer.sessions.watermark.handled >= 1)  # type: ignore[misc]
    assert [(one.bound, one.open_runs) for one in await records(world)] == [(0, OPEN)] * 3
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world):
        await world.published(LAST)


async def test_a_process_that_ends_leaves_its_open_runs_to_the_next(tmp_path: Path) -> None:
    """Neither in the middle of a step nor at the end of the process does a record leave the run out."""
    world, sleeper = await new_world(tmp_path), Sleeper(1)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world, change=sleeper.change) as trainer:
        await sleeper.asleep.wait()
        await trainer.sessions.holding.tick()
        assert [one.open_runs for one in await records(world)] == [OPEN]
        stopping = asyncio.create_task(trainer.sessions.stop())
        await asyncio.sleep(0)
        sleeper.wake.set()
        await stopping
        assert [(one.able, one.open_runs) for one in await records(world)] == [(False, OPEN)]


async def test_a_session_that_ends_the_process_leaves_its_run_in_the_record(tmp_path: Path) -> None:
    world = await new_world(tmp_path)
    await Episodes(world).groups(range(STEPS))

    def change(deps: RunDeps) -> RunDeps:
        async def broken(*_: Any, **__: Any) -> None:
            raise RanksGone("rank 1 ended")

        vars(deps.states)["note_attempt"] = broken
        return deps

    async with Trainer(world, change=change) as trainer:
        assert isinstance(await trainer.death(), RanksGone)
    assert [one.open_runs for one in await records(world)] == [OPEN]


async def test_a_run_that_is_closed_is_in_no_record_any_more(tmp_path: Path) -> None:
    world = await new_world(tmp_path)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world) as trainer:
        await world.published(LAST)
        assert trainer.sessions.holding.starting_point().open_runs == OPEN
        world.stream.append(over())
        await until(lambda: trainer.sessions.holding.starting_point().open_runs == ())
        assert CLOSED in world.store.objects
    assert [one.open_runs for one in await records(world)] == [()]


async def test_a_failed_run_stays_in_the_records_until_it_is_closed(tmp_path: Path) -> None:
    """A trainer that starts publishes session.failed again: the planner may not have read it."""
    world = World(tmp_path)
    await world.publish_base()
    world.stream.append(submission(learning_rate=-1.0))
    async with Trainer(world):
        await world.published(f"session.failed/{RUN}")
    assert [one.open_runs for one in await records(world)] == [OPEN]
    async with Trainer(world):
        world.stream.append(over())
        await until(lambda: CLOSED in world.store.objects)
    assert {one.open_runs for one in await records(world)} >= {()}


async def test_records_of_version_0_3_have_the_folders_listed(tmp_path: Path) -> None:
    world, listings = await new_world(tmp_path), Listings()
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world):
        await world.published(f"step.completed/{RUN}/1")
    for key in filter(parse_trainer_process, world.store.objects):
        record = json.loads(world.store.objects[key])
        del record["open_runs"]
        await world.store.put(key, json.dumps(record).encode())
    async with Trainer(world, change=listings.change):
        await world.published(LAST)
    assert listings.count == 1
    trained_once(world)


def test_the_open_runs_of_all_records_are_followed_from_the_largest_bound() -> None:
    """A record of before the stream was made anew has the largest bound, and lacks the newest run."""
    old = TrainerRecord("old", 9, bound=5000, open_runs=(("a", "run-1"),))
    new = TrainerRecord("new", 1, bound=10, open_runs=(("a", "run-1"), ("b", "run-2")))
    assert latest_starting_point([old, new]) == StartingPoint(5000, (("a", "run-1"), ("b", "run-2")))
    earlier = dataclasses.replace(new, open_runs=None)
    assert latest_starting_point([old, earlier]) == StartingPoint(5000, None)
    assert latest_starting_point([]) == StartingPoint(0, None)
