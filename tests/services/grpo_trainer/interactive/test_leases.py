"""Runs and interactive calls add versions to a model one at a time, and none fails because of another."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.interactive.trainers import SGD_LIKE, inline, passing, trainer_on
from tests.support.waiting import until

from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.errors import InvalidInput, ModelBusy, UnknownModel
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.domain.states import SessionPhase
from grpo_trainer.holding import ModelHolding
from grpo_trainer.interactive.inputs import StoredInput, TrainingInput
from grpo_trainer.interactive.state import Update
from grpo_trainer.interactive.turns import ModelTurns
from identities import events as event_ids
from identities import objects
from service_kit.loops import ended
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.errors import Unavailable

SECOND = "run-0000000000cd"


def batch() -> list[TrainingInput]:
    return [inline(seed, float(seed % 2)) for seed in range(4)]


class Gate:
    """Holds back a method of an object until it is opened."""

    def __init__(self, owner: object, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        inner = getattr(owner, name)

        async def gated(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            await self.open.wait()
            return await inner(*args, **kwargs)

        vars(owner)[name] = gated


async def one_step(world: World, run_id: str = RUN) -> None:
    world.stream.append(submission(run_id=run_id, steps=1, prompts_per_step=1))
    await Episodes(world, run_id=run_id).group(0, (1.0, 0.0, 0.0, 1.0))


async def phase_of(trainer: Trainer, run_id: str) -> SessionPhase:
    await until(lambda: any(one.spec.run_id == run_id for one in trainer.sessions.all), timeout_s=60)
    return trainer.sessions.get(run_id).phase


async def test_a_run_submitted_during_an_interactive_step_begins_with_its_version(world: World) -> None:
    leases = ModelLeases()
    async with trainer_on(world, leases=leases) as interactive, Trainer(world, leases=leases) as trainer:
        await interactive.forward_backward("a", batch())
        gate = Gate(interactive.deps.policies, "upload")
        stepping = asyncio.create_task(interactive.optim_step("b"))
        await asyncio.wait_for(gate.reached.wait(), 60)
        await one_step(world)
        late = asyncio.create_task(interactive.forward_backward("c", batch()))
        await until(
            lambda: "the interactive call about" in (trainer.sessions.waiting_for() or ""), timeout_s=20
        )
        assert await phase_of(trainer, RUN) is SessionPhase.OPENING
        gate.open.set()
        assert (await stepping).version == 1
        with pytest.raises(ModelBusy, match=RUN):
            await late
        await world.published(event_ids.policy_published(MODEL, 2))
        assert trainer.sessions.get(RUN).failure == ""
    assert [one.version for one in world.recorder.of(events.StepCompleted)] == [2]


async def test_a_call_about_an_unknown_model_leaves_no_lease(world: World) -> None:
    holding = ModelHolding(TrainersStore(world.store), "trainer-a")
    keeping = asyncio.create_task(holding.run())
    async with trainer_on(world, holding=holding) as interactive:
        for number in range(3):
            with pytest.raises(UnknownModel, match="is not registered"):
                await interactive.forward_backward("a", batch(), model=f"nosuch-{number}")
        await interactive.forward_backward("a", batch())
        leases = filter(None, map(objects.parse_trainer_lease, await world.store.list(objects.trainers())))
        assert [lease.model for lease in leases] == [MODEL]
    await ended([keeping])


async def test_a_step_that_began_before_a_run_was_submitted_is_completed(world: World) -> None:
    leases = ModelLeases()
    leases.runs_are_known()
    async with trainer_on(world, leases=leases) as interactive:
        gate = Gate(interactive.deps.claims, "claim")
        task = interactive.library.add("traj-a", 1.0)
        asked, update = passing([StoredInput(task)], group_size=1), Update(SGD_LIKE)
        stepping = asyncio.create_task(
            interactive.sessions.once(MODEL, "a", b"", lambda one: one.step("a", asked, update))
        )
        await asyncio.wait_for(gate.reached.wait(), 60)
        leases.queue_run(MODEL, RUN)
        gate.open.set()
        _, done = await stepping
        assert done.is_head
        leases.check_run(MODEL, RUN)


async def test_an_interactive_call_waits_until_the_unfinished_runs_are_known(world: World) -> None:
    leases = ModelLeases()
    async with trainer_on(world, leases=leases) as interactive:
        asking = asyncio.create_task(interactive.forward_backward("a", batch()))
        await until(lambda: "unfinished runs" in (interactive.sessions.waiting_for() or ""), timeout_s=60)
        async with Trainer(world, leases=leases):
            assert (await asking).num_datums > 0


async def test_a_run_waits_for_the_one_before_it(world: World) -> None:
    await one_step(world)
    await one_step(world, SECOND)
    async with Trainer(world) as trainer:
        await world.published(event_ids.policy_published(MODEL, 1))
        await until(lambda: trainer.sessions.get(SECOND).phase is SessionPhase.FINISHED, timeout_s=60)
        world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
    versions = {one.run_id: one.version for one in world.recorder.of(events.StepCompleted)}
    assert versions == {RUN: 1, SECOND: 3}


def test_runs_get_a_model_in_the_order_of_their_submission() -> None:
    leases = ModelLeases()
    leases.queue_run("m", "one")
    leases.queue_run("m", "two")
    leases.queue_run("m", "one")
    leases.queue_run("other", "three")
    leases.check_run("m", "one")
    leases.check_run("other", "three")
    with pytest.raises(Unavailable, match="one, which trains 'm' before it"):
        leases.check_run("m", "two")
    leases.end_run("m", "one")
    leases.end_run("m", "one")
    leases.check_run("m", "two")


def test_a_model_has_one_run_or_one_interactive_call() -> None:
    leases = ModelLeases()
    with pytest.raises(Unavailable, match="unfinished runs"):
        leases.begin_call("m")
    leases.runs_are_known()
    leases.begin_call("m")
    leases.queue_run("m", "run-1")
    with pytest.raises(Unavailable, match="interactive call about 'm'"):
        leases.check_run("m", "run-1")
    leases.end_call("m")
    leases.check_run("m", "run-1")
    with pytest.raises(ModelBusy, match="run-1 trains 'm'"):
        leases.begin_call("m")
    leases.begin_call("other")
    leases.end_run("m", "run-1")
    leases.begin_call("m")


@pytest.mark.parametrize("model", ["x" * 1100, ""])
async def test_a_name_that_no_model_has_is_refused_before_it_is_leased(model: str) -> None:
    """Its lease would be an object with a name that the store refuses, which ended the trainer."""
    with pytest.raises(InvalidInput, match="no name of a model"):
        await ModelTurns(model, cast(Any, None)).hold()
