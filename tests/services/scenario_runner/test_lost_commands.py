"""What the planner asks the bus about commands that may be lost, on a real server."""

from datetime import datetime, timedelta

import nats
from tests.conftest import NatsFactory
from tests.support.waiting import until

from episodes import Purpose
from event_bus import BusSettings, EventBus
from event_bus.model_queues import provision_queues
from event_bus.provision import provision
from event_bus.topology import ROLLOUT_SAMPLER_EVAL, TASKS
from scenario_runner.adapters.peers import BusGauge
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested

MODEL = "m"
QUEUE = ROLLOUT_SAMPLER_EVAL.of_model(MODEL)


def assert_equal(found: datetime | None, expected: datetime) -> None:
    assert found is not None
    assert abs(found - expected) < timedelta(milliseconds=1)  # the two are rounded differently


async def test_the_oldest_command_of_a_queue_says_what_is_not_in_it_any_more(
    nats_server: NatsFactory,
) -> None:
    server = nats_server()
    await provision(server.url)
    await provision_queues(server.url, [MODEL, "other"])
    settings = BusSettings(url=server.url)
    bus, gauge = EventBus(settings, client_name="test"), BusGauge(settings)
    client = await nats.connect(server.url)
    await bus.start()
    try:
        assert await gauge.none_queued_before(Purpose.EVAL, "nobody") is None
        empty = await gauge.none_queued_before(Purpose.EVAL, MODEL)
        assert empty is not None
        assert empty.year == 9999
        await bus.command(EpisodeRequested(), pool="eval", model="other", event_id="another model's")
        await bus.command(EpisodeRequested(), pool="train", model=MODEL, event_id="another pool's")
        for number in range(2):
            await bus.command(EpisodeRequested(), pool="eval", model=MODEL, event_id=f"command {number}")
        pull = await client.jetstream().pull_subscribe_bind(QUEUE.durable, stream=TASKS)
        first, second = await pull.fetch(2, timeout=30)
        found = await gauge.none_queued_before(Purpose.EVAL, MODEL)
        assert_equal(found, first.metadata.timestamp)
        await first.ack_sync()
        found = await until(lambda: gauge.none_queued_before(Purpose.EVAL, MODEL))
        assert_equal(found, second.metadata.timestamp)
    finally:
        await client.close()
        await gauge.stop()
        await bus.stop()
