"""A queue per model: a model without an engine waits in its own queue, where it holds up no other."""

import asyncio

import nats
from nats.js.api import ConsumerInfo
from tests.services.rollout_sampler.conftest import Testbed
from tests.services.rollout_sampler.doubles import MODEL
from tests.support.waiting import until

from event_bus.model_queues import provision_queues
from event_bus.topology import ROLLOUT_SAMPLER_TRAIN
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded

ORPHAN = "orphan"
NUM_ORPHANS = 1100
"""More than the durables of 0.3.0 may have unacknowledged: nothing behind them was delivered."""


async def queue_of(bed: Testbed, model: str) -> ConsumerInfo:
    """The durable of a model's training commands, as the server sees it."""
    connection = await nats.connect(bed.settings.bus.url)
    try:
        spec = ROLLOUT_SAMPLER_TRAIN.of_model(model)
        found: ConsumerInfo = await connection.jetstream().consumer_info(spec.stream, spec.durable)
        return found
    finally:
        await connection.close()


async def test_a_model_without_an_engine_stops_the_episodes_of_no_other(bed: Testbed) -> None:
    await provision_queues(bed.settings.bus.url, [MODEL, ORPHAN])
    await asyncio.gather(
        *(
            bed.ask(bed.request(n, policy=common_pb2.PolicySelector(model=ORPHAN)), model=ORPHAN)
            for n in range(NUM_ORPHANS)
        )
    )
    await bed.engine(lambda _, __: "served")
    await bed.sampler()
    await bed.ask(*(bed.request(NUM_ORPHANS + n) for n in range(3)))
    facts = await bed.outcomes(3)
    assert all(isinstance(fact, TrajectoryRecorded) for fact in facts)
    await until(lambda: _waits(bed, ORPHAN, NUM_ORPHANS), "the server to count the commands")
    assert not (await queue_of(bed, ORPHAN)).num_redelivered


async def test_commands_that_no_engine_can_play_stop_no_other_of_their_model(bed: Testbed) -> None:
    wanted = common_pb2.PolicySelector(model=MODEL, pinned_version=7)
    await bed.engine(lambda _, __: "served")
    await asyncio.gather(*(bed.ask(bed.request(n, policy=wanted)) for n in range(NUM_ORPHANS)))
    await bed.ask(*(bed.request(NUM_ORPHANS + n) for n in range(3)))
    await bed.sampler(train_slots=2)
    facts = await bed.outcomes(3)
    assert all(isinstance(fact, TrajectoryRecorded) for fact in facts)
    waiting = await queue_of(bed, MODEL)
    assert (waiting.num_pending, waiting.num_ack_pending) == (0, NUM_ORPHANS)


async def test_episodes_that_waited_for_a_version_are_played_when_an_engine_holds_it(bed: Testbed) -> None:
    wanted = common_pb2.PolicySelector(model=MODEL, pinned_version=4)
    await bed.engine(lambda _, __: "served")
    await bed.ask(*(bed.request(n, policy=wanted) for n in range(3)))
    await bed.ask(bed.request(3))
    await bed.sampler(train_slots=1)
    await bed.outcomes(1)
    await bed.engine(
        lambda _, __: "held", engine_id="engine-b", version=4, channel=common_pb2.CHANNEL_CANDIDATE
    )
    assert len(await bed.outcomes(4)) == 4


async def test_an_engine_that_comes_later_gets_what_waited_and_one_that_goes_leaves_the_rest(
    bed: Testbed,
) -> None:
    await bed.sampler()
    await bed.ask(bed.request(0))
    await until(lambda: bed.registry.calls >= 3)
    assert (await queue_of(bed, MODEL)).num_pending == 1
    await bed.engine(lambda _, __: "here")
    await bed.outcomes(1)
    bed.registry.engines.clear()
    await until(lambda: _asks_for_nothing(bed), "the sampler to leave the queue")
    await bed.ask(bed.request(1))
    await until(lambda: _waits(bed, MODEL, 1), "the server to count the command")
    assert not (await queue_of(bed, MODEL)).num_redelivered


async def _waits(bed: Testbed, model: str, num_commands: int) -> bool:
    """The server counts a command after it has acknowledged it."""
    queue = await queue_of(bed, model)
    return (queue.num_pending, queue.num_ack_pending) == (num_commands, 0)


async def _asks_for_nothing(bed: Testbed) -> bool:
    return not (await queue_of(bed, MODEL)).num_waiting


async def test_a_sampler_that_is_started_again_goes_on_with_the_queue(bed: Testbed) -> None:
    await bed.engine(lambda _, __: "first or second")
    first = await bed.sampler()
    await bed.ask(bed.request(0))
    await bed.outcomes(1)
    await first.stop()
    await bed.ask(bed.request(1))
    await bed.sampler()
    await bed.outcomes(2)


async def test_a_sampler_whose_queue_does_not_exist_says_so_and_goes_on_when_it_does(bed: Testbed) -> None:
    await provision_queues(
        bed.settings.bus.url, []
    )  # the registry has no models: the empty queues are removed
    await bed.engine(lambda _, __: "late")
    sampler = await bed.sampler()
    await bed.ask(bed.request())
    missing = ROLLOUT_SAMPLER_TRAIN.of_model(MODEL).durable
    await until(
        lambda: missing in sampler.readiness().reasons.get("bus", ""), "the missing queue to be named"
    )
    assert "upcycle-provision --watch" in sampler.readiness().reasons["bus"]
    await provision_queues(bed.settings.bus.url, [MODEL])
    await bed.outcomes(1)
    await until(lambda: sampler.readiness().reasons == {})
