"""The series that dashboards read."""

from typing import Any

from prometheus_client import REGISTRY
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, eyes_on, fact_spec, failed, running, subscribe

from event_bus import Delivery, PoisonMessage
from upcycle.errors import Unavailable


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_every_way_to_end_is_counted(nats_server: NatsFactory) -> None:
    server, spec, asked = nats_server(), fact_spec("counted", max_deliver=2), set[str]()

    async def handler(delivery: Delivery[Any]) -> None:
        match delivery.message.detail:
            case "later" if "later" not in asked:
                asked.add("later")
                raise Unavailable("not yet", 0)
            case "poison":
                raise PoisonMessage("never")
            case "bad":
                raise KeyError("no")

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        for detail in ("good", "later", "poison", "bad"):
            await bus.publish(failed(detail), model=MODEL, event_id=detail)
        await eyes.settled(spec)
    labels = {"consumer": "counted"}
    assert value("upcycle_bus_delivered_total", **labels) == 6
    assert value("upcycle_bus_redelivered_total", **labels) == 2
    assert value("upcycle_bus_postponed_total", **labels) == 1
    assert value("upcycle_bus_failed_total", error="KeyError", **labels) == 2
    assert value("upcycle_bus_dead_lettered_total", **labels) == 2
    assert value("upcycle_bus_in_flight", **labels) == 0
    assert value("upcycle_bus_handled_seconds_count", **labels) == 6
    assert value("upcycle_bus_published_seconds_count", subject="up.{tenant}.evt.episode.failed.{model}") >= 4
