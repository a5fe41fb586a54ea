"""A model has one line of versions: runs and training by hand take turns, and nobody fails for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.interactive.trainers import inline, trainer_on

from grpo_trainer.domain.errors import ModelBusy
from grpo_trainer.domain.model_leases import ModelLeases
from grpo_trainer.interactive.inputs import TrainingInput
from grpo_trainer.runs.session import Phase
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events

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


async def phase_of(trainer: Trainer, run_id: str) -> Phase:
    async with asyncio.timeout(20):
        while not any(one.spec.run_id == run_id for one in trainer.sessions.all):
            await asyncio.sleep(0.01)
    return trainer.sessions.get(run_id).phase


async def test_a_run_submitted_during_an_interactive_step_goes_on_from_it(world: World) -> None:
    leases = ModelLeases()
    async with trainer_on(world, leases=leases) as one, Trainer(world, leases=leases) as trainer:
        await one.forward_backward("a", batch())
        gate = Gate(one.sessions.deps.policies, "publish")
        stepping = asyncio.create_task(one.optim_step("b"))
        await asyncio.wait_for(gate.reached.wait(), 20)
        await one_step(world)
        assert await phase_of(trainer, RUN) is Phase.OPENING
        late = asyncio.create_task(one.forward_backward("c", batch()))
        await asyncio.sleep(0.3)
        assert trainer.sessions.get(RUN).phase is Phase.OPENING
        assert "the interactive call about" in (trainer.sessions.waiting_for() or "")
        gate.open.set()
        assert (await stepping).version == 1
        with pytest.raises(ModelBusy, match=RUN):
            await late
        await world.published(f"policy.published/default/{MODEL}/2")
        assert trainer.sessions.get(RUN).failure == ""
    assert [one.version for one in world.recorder.of(events.StepCompleted)] == [2]


async def test_an_interactive_call_waits_until_it_is_known_which_runs_go_on(world: World) -> None:
    leases = ModelLeases()
    trainer = Trainer(world, leases=leases)
    async with trainer_on(world, leases=leases) as one:
        asking = asyncio.create_task(one.forward_backward("a", batch()))
        await asyncio.sleep(0.3)
        assert not asking.done()
        async with trainer:
            assert (await asking).num_datums > 0


async def test_a_run_waits_for_the_one_before_it(world: World) -> None:
    await one_step(world)
    await one_step(world, SECOND)
    async with Trainer(world) as trainer:
        await world.published(f"policy.published/default/{MODEL}/1")
        async with asyncio.timeout(20):
            while trainer.sessions.get(SECOND).phase is not Phase.FINISHED:
                await asyncio.sleep(0.01)
        world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
    versions = {one.run_id: one.version for one in world.recorder.of(events.StepCompleted)}
    assert versions == {RUN: 1, SECOND: 3}
