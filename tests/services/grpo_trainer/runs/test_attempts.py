"""A batch during which the process is killed twice ends its run; departures on notice do not count."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.processes import (
    SLOW_TRAINER,
    Outside,
    Process,
    of_group,
    outside,
    publish,
    run_of_steps,
    slow,
    wait_for,
)
from tests.support.waiting import until

from event_bus import EventBus
from grpo_trainer.domain.errors import LostRank, RanksGone
from grpo_trainer.runs.attempt_record import Attempt, attempt_from_json, next_attempt
from grpo_trainer.runs.deps import RunDeps
from service_kit.groups import S3Settings
from upcycle.api.training.v1 import events_pb2 as events

RECORD = f"default/training/{MODEL}/{RUN}/attempts.json"
FAILED = f"session.failed/{RUN}"


def test_only_the_same_batch_of_the_same_step_is_begun_again() -> None:
    first = next_attempt(None, 3, ["g1", "g2"])
    assert (first.step, first.starts, first.done) == (3, 1, False)
    again = next_attempt(first, 3, ["g1", "g2"])
    assert (again.batch, again.starts) == (first.batch, 2)
    assert next_attempt(again, 3, ["g1", "g2"]).starts == 3
    assert next_attempt(again.left(), 3, ["g1", "g2"]).starts == 2
    others = [(4, ["g1", "g2"]), (3, ["g1", "g3"]), (3, ["g1"]), (3, ["g1g2"])]
    assert [next_attempt(again, step, ids).starts for step, ids in others] == [1, 1, 1, 1]
    done = Attempt(3, again.batch, 2, done=True)
    assert next_attempt(done, 3, ["g1", "g2"]).starts == 1
    assert attempt_from_json(json.loads(json.dumps(again.to_json()))) == again


async def begun(world: World, starts: int) -> None:
    """One step is done; a process was killed so often in the batch of the second."""
    world.stream.append(submission(steps=2, prompts_per_step=1, max_staleness=2))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    group_id = await Episodes(world).group(1, MIXED)
    attempt = next_attempt(None, 2, [group_id])
    assert json.loads(world.store.objects[RECORD])["done"]
    record = {**attempt.to_json(), "starts": starts}
    world.store.objects[RECORD] = json.dumps(record).encode()


async def test_a_batch_that_was_begun_once_is_taken_and_noted(world: World) -> None:
    await begun(world, 1)
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000002")
    record = json.loads(world.store.objects[RECORD])
    assert (record["step"], record["starts"], record["done"]) == (2, 2, True)


async def test_a_batch_that_was_begun_twice_ends_its_run_and_computes_nothing(world: World) -> None:
    await begun(world, 2)
    async with Trainer(world):
        fact = await world.published(FAILED)
    assert (fact.kind, fact.step) == ("killed", 1)
    for word in ("ended 2 times", "batch of step 2 (1 groups)", "GRADIENT_CHECKPOINTING"):
        assert word in fact.detail
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1]


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"step": 2}', b'{"step":"x","batch":1,"starts":9}'])
async def test_a_record_that_cannot_be_read_is_left_out_with_a_log_line(
    world: World, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await begun(world, 2)
    world.store.objects[RECORD] = damage
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000002")
    assert [one for one in caplog.records if one.getMessage() == "attempts_unreadable"]


async def record(around: Outside, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The record in the store, once it is as expected."""

    async def fitting() -> dict[str, Any] | None:
        found = json.loads(await around.store.read(RECORD) or b"null")
        return dict(found) if found is not None and fits(found) else None

    return dict(await until(fitting, "such a record", timeout_s=60))


def begun_times(starts: int) -> Callable[[dict[str, Any]], bool]:
    return lambda one: one["starts"] == starts


async def failure(bus: EventBus) -> events.SessionFailed:
    async with asyncio.timeout(60):
        async for delivery in bus.replay([events.SessionFailed], after_sequence=0, model=MODEL):
            return delivery.message  # type: ignore[no-any-return]
    raise AssertionError("the stream ended")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_twice_in_one_batch_the_third_start_ends_the_run(
    tmp_path: Path, s3_settings: S3Settings
) -> None:
    """The real process: neither a stop on notice in the batch counts, nor a kill in another batch."""
    world = World(tmp_path / "world")
    await run_of_steps(world)
    async with outside(world, tmp_path, s3_settings) as around:
        variables = slow(around.environment(tmp_path), 2, GRPO_TRAINER_SPOT_GRACE_S="2")
        async with Process(variables, tmp_path / "trainer.log", module=SLOW_TRAINER) as process:
            await process.start()
            await publish(world, around.bus, of_group(0))
            first = await record(around, lambda one: not one["done"])
            assert (first["step"], first["starts"]) == (1, 1)
            await process.end(signal.SIGKILL)  # once in the first batch
            await process.start()
            again = await record(around, lambda one: one["starts"] == 2)
            assert (again["step"], again["batch"], again["done"]) == (1, first["batch"], False)
            await wait_for(around.bus, 1)
            await publish(world, around.bus, of_group(1))
            second = await record(around, lambda one: one["step"] == 2 and not one["done"])
            assert second["starts"] == 1  # another batch
            await process.end(signal.SIGTERM)
            left = await record(around, lambda one: one["starts"] == 0)
            assert (left["step"], left["done"]) == (2, False)
            for starts in (1, 2):
                await process.start()
                await record(around, begun_times(starts))
                await process.end(signal.SIGKILL)
            await process.start()
            fact = await failure(around.bus)
            assert (fact.kind, fact.step, fact.run_id) == ("killed", 1, RUN)
            assert await process.end(signal.SIGTERM) == 0


async def test_a_session_whose_turn_comes_after_a_rank_was_lost_is_not_charged(world: World) -> None:
    """The batch that was computed is; the one that waited for it never began."""
    error: Exception = RanksGone("rank 1 was gone before")

    def change(deps: RunDeps) -> RunDeps:
        def new_learner() -> Any:
            learner = deps.new_learner()

            async def step(*given: Any) -> Any:
                raise error

            vars(learner)["step"] = step
            return learner

        return dataclasses.replace(deps, new_learner=new_learner)

    world.stream.append(submission(prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world, change=change) as trainer:
        assert isinstance(await trainer.death(), RanksGone)
    assert json.loads(world.store.objects[RECORD])["starts"] == 0
    error = LostRank("rank 1 is gone")
    async with Trainer(world, change=change) as trainer:
        assert isinstance(await trainer.death(), LostRank)
    assert json.loads(world.store.objects[RECORD])["starts"] == 1


async def test_a_store_that_is_slow_to_note_a_batch_as_done_holds_up_no_other_run(world: World) -> None:
    noting, go_on = asyncio.Event(), asyncio.Event()

    def change(deps: RunDeps) -> RunDeps:
        note = deps.states.note_attempt

        async def slow(model: str, run_id: str, attempt: Attempt) -> None:
            if run_id == RUN and attempt.done:
                noting.set()
                await go_on.wait()
            await note(model, run_id, attempt)

        vars(deps.states)["note_attempt"] = slow
        return deps

    await world.publish_base(model="other", seed=4)
    world.stream.append(submission(steps=1, prompts_per_step=1))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world, change=change):
        async with asyncio.timeout(60):
            await noting.wait()
        world.stream.append(submission(run_id="run-2", model="other", steps=1, prompts_per_step=1))
        await Episodes(world, run_id="run-2").group(0, MIXED)
        await world.published("step.completed/run-2/1")
        assert f"step.completed/{RUN}/1" not in world.recorder.events
        go_on.set()
        await world.published(f"step.completed/{RUN}/1")
