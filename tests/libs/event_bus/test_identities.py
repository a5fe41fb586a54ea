"""The bus of services with keys of their own: all that they need works with the rights that they have."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.bus_identities import MODEL, KeyedServer, keyed_server
from tests.libs.event_bus.support import Seen, subscribe
from tests.support.waiting import until

from event_bus import CurrentDelivery, Decision, Delivery, EventBus, EventRouter, PoisonMessage
from event_bus.dead_letter_box import DeadLetterBox
from event_bus.errors import NotOurDecision
from event_bus.rights import OPERATOR
from event_bus.topology import CHECKPOINT_REGISTRY, REWARD_GRADER, ROLLOUT_SAMPLER_TRAIN
from identities import events
from service_kit.clock import utc_now
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested, RunFinished
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedServer]:
    async with keyed_server(tmp_path) as running:
        yield running


def graded(episode: str, reward: float = 1.0) -> Decision:
    event = TrajectoryGraded(episode=EpisodeIdentity(episode_id=episode), reward=reward)
    return Decision(event, MODEL, events.episode_outcome(episode))


def failed(episode: str) -> Decision:
    event = EpisodeFailed(episode=EpisodeIdentity(episode_id=episode), kind="timeout")
    return Decision(event, MODEL, events.episode_outcome(episode))


async def facts_of(bus: EventBus, kind: Any) -> list[Any]:
    return [one.message for one in await bus.stored((kind,), after_sequence=0, model=MODEL)]


async def test_a_grade_is_decided_by_the_grader_and_read_by_the_trainer(keyed: KeyedServer) -> None:
    async with keyed.bus("reward_grader") as grader, keyed.bus("grpo_trainer") as trainer:
        assert await grader.decide([graded("e1", 0.5)]) == [graded("e1", 0.5).event]

        await until(lambda: facts_of(trainer, TrajectoryGraded))
        assert await trainer.standing(failed("e1")) == graded("e1", 0.5).event


async def test_several_decisions_stand_together(keyed: KeyedServer) -> None:
    async with keyed.bus("scenario_runner") as planner, keyed.bus("reward_grader") as grader:
        await grader.decide([graded("e1")])

        stored = await planner.decide([failed("e1"), failed("e2")])
        assert stored == [graded("e1").event, None]
        assert await planner.decide([failed("e2"), failed("e3")]) == [failed("e2").event, failed("e3").event]


async def test_a_reader_without_a_durable_gets_each_fact(keyed: KeyedServer) -> None:
    found: list[int] = []

    async def read(bus: EventBus) -> None:
        async for delivery in bus.replay([CheckpointPromoted], after_sequence=0):
            found.append(delivery.message.version)

    async with keyed.bus("checkpoint_registry") as registry, keyed.bus("model_gateway") as gateway:
        reading = asyncio.create_task(read(gateway))
        for version in range(1, 4):
            event = CheckpointPromoted(model=MODEL, version=version)
            await registry.publish(event, model=MODEL, event_id=f"promoted/{version}")
        await until(lambda: found == [1, 2, 3])
        reading.cancel()


async def test_a_durable_is_read_and_acknowledged_and_failures_are_counted(keyed: KeyedServer) -> None:
    tries: list[Delivery[Any]] = []

    async def fails_twice(delivery: Delivery[Any]) -> None:
        tries.append(delivery)
        if len(tries) < 3:
            raise ValueError("a bug")

    bus = EventBus(keyed.settings("reward_grader"), client_name="reward_grader")
    subscribe(bus, REWARD_GRADER, fails_twice)
    async with keyed.bus("rollout_sampler") as sampler:
        await sampler.publish(TrajectoryRecorded(), model=MODEL, event_id="recorded/1")
        await bus.start()
        try:
            await until(lambda: len(tries) == 3)
        finally:
            await bus.stop()
    assert [one.failures for one in tries] == [0, 1, 2]


async def test_commands_reach_the_sampler(keyed: KeyedServer) -> None:
    seen = Seen()
    router = EventRouter()
    queue = router.queue(ROLLOUT_SAMPLER_TRAIN, slots=2)

    @queue
    async def on_requested(event: EpisodeRequested, delivery: CurrentDelivery) -> None:
        seen.note(delivery)

    sampler = EventBus(keyed.settings("rollout_sampler"), client_name="rollout_sampler")
    sampler.include_router(router)
    await sampler.start()
    try:
        queue.follow({MODEL})
        async with keyed.bus("scenario_runner") as planner:
            for number in range(3):
                await planner.command(
                    EpisodeRequested(), pool="train", model=MODEL, event_id=f"requested/{number}"
                )
        await until(lambda: len(seen.deliveries) == 3)
    finally:
        await sampler.stop()


async def test_what_a_reader_gives_up_is_named_to_others_and_replayed_by_an_operator(
    keyed: KeyedServer,
) -> None:
    tries: list[Any] = []

    async def gives_up(delivery: Delivery[Any]) -> None:
        tries.append(delivery.message)
        if len(tries) == 1:
            raise PoisonMessage("not today")

    bus = EventBus(keyed.settings("checkpoint_registry"), client_name="checkpoint_registry")
    subscribe(bus, CHECKPOINT_REGISTRY, gives_up)
    async with keyed.bus("scenario_runner") as planner:
        await planner.publish(RunFinished(run_id="r"), model=MODEL, event_id="run.finished/r")
    await bus.start()
    try:

        async def is_named() -> bool:
            return "gave up 1 message" in (await bus.unread(utc_now() + timedelta(hours=1)) or "")

        await until(is_named)
        async with DeadLetterBox.opened(keyed.settings(OPERATOR)) as box:
            (letter,) = await box.letters(limit=5)
            await box.replay(letter.number)
        await until(lambda: len(tries) == 2)
    finally:
        await bus.stop()


async def test_the_planner_has_a_grade_copied_and_cannot_decide_one(keyed: KeyedServer) -> None:
    """What it publishes again comes from the grader's decision, whatever it says itself."""
    async with (
        keyed.bus("scenario_runner") as planner,
        keyed.bus("reward_grader") as grader,
        keyed.bus("grpo_trainer") as trainer,
    ):
        await grader.decide([graded("e1", 0.25)])
        again = graded("e1", 1.0)

        ack = await planner.publish(again.event, model=MODEL, event_id=again.event_id, again=True)
        assert ack.duplicate
        with pytest.raises(NotOurDecision, match=r"scenario_runner may only have a stored one copied"):
            await planner.publish(graded("e2").event, model=MODEL, event_id=graded("e2").event_id, again=True)

        rewards = {one.reward for one in await until(lambda: facts_of(trainer, TrajectoryGraded))}
        assert rewards == {0.25}
