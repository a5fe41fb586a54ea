"""A run that is cancelled during a step: the step counts where the trainer said so in time, and is void where
the planner spoke first, whether the trainer was slow or away."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, refused, submission
from tests.services.grpo_trainer.crashes import Killed
from tests.services.grpo_trainer.fakes import START, Recorder
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from episodes import GroupOutcome, GroupReason
from event_bus import BusSettings, Decision, EventBus
from event_bus.provision import provision
from grpo_trainer.adapters.bus_facts import BusFacts
from grpo_trainer.domain.errors import Superseded
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionPhase
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement, excluded
from grpo_trainer.runs.deps import RunDeps
from policy_files import KeptFacts
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.errors import Unavailable

CLOSED = f"default/training/{MODEL}/{RUN}/closed.json"
MARKER = "step-00000001/state.json"


def cancelled(*, is_final: bool = False) -> taskset_events.RunStopping:
    return taskset_events.RunStopping(
        run_id=RUN, model=MODEL, ending=taskset.RUN_STATE_CANCELLED, is_final=is_final
    )


def over() -> taskset_events.RunFinished:
    return taskset_events.RunFinished(run_id=RUN, model=MODEL)


def settled_instead(index: int) -> events.GroupSettled:
    """As the planner says it in the trainer's stead."""
    group_id = f"{RUN}-g{index:05d}"
    episode_ids = [f"{group_id}-e{member:03d}-a0" for member in range(4)]
    return events.GroupSettled(
        group_id=group_id,
        run_id=RUN,
        model=MODEL,
        outcome="excluded",
        reason="run_over",
        episode_ids=episode_ids,
    )


async def superseded(world: World) -> None:
    """The planner gives up on the trainer, says so, and ends the run."""
    world.stream.append(cancelled(is_final=True))
    for index in range(2):
        fact = settled_instead(index)
        world.recorder.decided_by_another(fact, f"group.settled/{fact.group_id}")
    world.stream.append(over())


async def until_closed(world: World) -> None:
    await until(lambda: CLOSED in world.store.objects, timeout_s=60)


async def a_run_with_a_batch(world: World) -> None:
    world.stream.append(submission(steps=3, checkpoint_every_steps=1))
    for index in range(2):
        await Episodes(world).group(index, MIXED)


def assert_nothing_was_said_of_the_step(world: World) -> None:
    for kind in (events.StepCompleted, events.PolicyPublished, events.CheckpointSaved):
        assert not world.recorder.of(kind)
    assert {one.outcome for one in world.recorder.of(events.GroupSettled)} == {"excluded"}


class Gate:
    """Holds back what passes it until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def passed(self) -> None:
        self.reached.set()
        await self.open.wait()


class SlowStore:
    """A store whose markers take until the gate opens."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put_if_absent(self, key: str, data: bytes) -> Any:
        if key.endswith(MARKER):
            await self._gate.passed()
        return await self._inner.put_if_absent(key, data)


def slowly(gate: Gate) -> Callable[[RunDeps], RunDeps]:
    def change(deps: RunDeps) -> RunDeps:
        vars(deps.states)["_store"] = SlowStore(vars(deps.states)["_store"], gate)
        return deps

    return change


class Silent:
    """A bus on which the trainer dies with its first fact about a group."""

    def __init__(self, inner: Recorder) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def decide(self, words: Sequence[Decision]) -> object:
        raise Killed(words[0].event_id)


def silenced(deps: RunDeps) -> RunDeps:
    vars(deps.facts)["_bus"] = Silent(vars(deps.facts)["_bus"])
    return dataclasses.replace(deps)


async def test_a_step_under_way_is_trained_and_nothing_asks_to_be_judged(world: World) -> None:
    gate = Gate()
    world.stream.append(submission(steps=3, checkpoint_every_steps=3))
    await Episodes(world).groups(range(3))
    async with Trainer(world, change=slowly(gate)) as trainer:
        await asyncio.wait_for(gate.reached.wait(), 60)
        world.stream.append(cancelled())
        gate.open.set()
        left = await world.settled(f"{RUN}-g00002")
        world.stream.append(over())
        await until_closed(world)
        assert trainer.sessions.get(RUN).phase is SessionPhase.FINISHED
    assert (left.outcome, left.reason) == ("excluded", "run_over")
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1]
    trained = [one for one in world.recorder.of(events.GroupSettled) if one.outcome == "trained"]
    assert len(trained) == 2
    assert not world.recorder.of(events.CheckpointSaved)


async def test_a_step_after_the_final_stop_is_void(world: World) -> None:
    gate = Gate()
    await a_run_with_a_batch(world)
    async with Trainer(world, change=slowly(gate)) as trainer:
        await asyncio.wait_for(gate.reached.wait(), 60)
        world.stream.append(cancelled())
        await superseded(world)
        gate.open.set()
        await until_closed(world)
        assert trainer.sessions.get(RUN).failure == ""
    assert_nothing_was_said_of_the_step(world)
    assert f"default/policies/{MODEL}/v00000001/manifest.json" not in world.store.objects


async def test_a_durable_step_that_was_not_announced_is_void_after_the_final_stop(world: World) -> None:
    await a_run_with_a_batch(world)
    async with Trainer(world, change=silenced) as trainer:
        assert isinstance(await trainer.death(), Killed)
    assert any(key.endswith(MARKER) for key in world.store.objects)
    world.stream.append(cancelled())
    await superseded(world)
    async with Trainer(world):
        await until_closed(world)
    assert_nothing_was_said_of_the_step(world)
    async with Trainer(world) as trainer:
        await refused(world, "run-after")
        assert not trainer.sessions.all
    assert_nothing_was_said_of_the_step(world)


async def test_a_trainer_that_restarts_before_the_deadline_publishes_its_step(world: World) -> None:
    await a_run_with_a_batch(world)
    async with Trainer(world, change=silenced) as trainer:
        assert isinstance(await trainer.death(), Killed)
    world.stream.append(cancelled())
    async with Trainer(world):
        assert (await world.settled(f"{RUN}-g00000")).outcome == "trained"
        assert (await world.settled(f"{RUN}-g00001")).outcome == "trained"
        world.stream.append(over())
        await until_closed(world)
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1]


async def test_a_step_is_published_whole_or_not_at_all(nats_server: NatsFactory) -> None:
    """On a real bus: where the planner settled one group, no other is trained and no step completed."""
    server = nats_server()
    await provision(server.url)
    bus = EventBus(BusSettings(url=server.url), client_name="test")
    await bus.start()
    try:
        facts = BusFacts(bus, KeptFacts(MemoryBlobStore()), now=lambda: START)
        spec = TrainingSpec(run_id=RUN, model=MODEL, group_size=4)
        await facts.publish_step(spec, a_record(1, 0, 1))
        await facts.publish_step(spec, a_record(1, 0, 1))  # again, after a crash
        await facts.confirm_step(spec, a_record(1, 0, 1))
        instead = settled_instead(3)
        event_id = f"group.settled/{instead.group_id}"
        await bus.publish(instead, model=MODEL, event_id=event_id, author="planner")
        void = r"g00003 is trained\(2\), and .*g00003 is excluded\(run_over\) was decided"
        for publish in (facts.confirm_step, facts.publish_step):
            with pytest.raises(Superseded, match=void):
                await publish(spec, a_record(2, 2, 3))
        with pytest.raises(Superseded, match="step 1 made version 1 of 8 trajectories was decided"):
            await facts.publish_step(spec, a_record(1, 4, 5))
        await facts.publish_settled(spec, excluded(a_group(3), GroupReason.STALE))  # the planner's stands
        await facts.publish_settled(spec, excluded(a_group(2), GroupReason.STALE))
        found = await until_some(bus, 5)
    finally:
        await bus.stop()
    assert [(one.group_id[-1], one.outcome, one.reason) for one in found if hasattr(one, "outcome")] == [
        ("0", "trained", ""),
        ("1", "trained", ""),
        ("3", "excluded", "run_over"),
        ("2", "excluded", "stale"),
    ]
    assert [one.step for one in found if isinstance(one, events.StepCompleted)] == [1]


async def test_a_trainer_that_does_not_hold_its_model_decides_nothing(world: World) -> None:
    """What it would decide stands for good, and another trainer may have decided otherwise."""

    def gone(model: str) -> None:
        raise Unavailable(f"the lease of {model} has to be renewed first")

    facts = BusFacts(world.recorder, KeptFacts(world.store), now=world.clock, check=gone)
    spec = TrainingSpec(run_id=RUN, model=MODEL, group_size=4)
    with pytest.raises(Unavailable):
        await facts.publish_step(spec, a_record(1, 0, 1))
    with pytest.raises(Unavailable):
        await facts.publish_settled(spec, excluded(a_group(2), GroupReason.STALE))
    assert not world.recorder.events


def a_group(index: int) -> CompleteGroup:
    return CompleteGroup(f"{RUN}-g{index:05d}", (), 1)


def a_record(step: int, *groups: int) -> StepRecord:
    settled = tuple(
        Settlement(a_group(one).group_id, GroupOutcome.TRAINED, GroupReason.NONE, (), step) for one in groups
    )
    ids = tuple(f"traj-{group}-{member}" for group in groups for member in range(4))
    return StepRecord(
        step, step, ids, {}, START, saves_checkpoint=True, parent_checkpoint_id="", settlements=settled
    )


async def until_some(bus: EventBus, count: int) -> list[Any]:
    """The first ends of groups and steps in the stream of facts."""
    found: list[Any] = []
    replay = bus.replay([events.GroupSettled, events.StepCompleted], after_sequence=0)
    async with asyncio.timeout(20):
        async for delivery in replay:
            found.append(delivery.message)
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} facts")
