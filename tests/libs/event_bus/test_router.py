"""Handlers on a router: which function gets which event, and what is refused before anything is read."""

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, eyes_on, fact_spec, failed, running, topology
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusError, Carries, CurrentDelivery, EventHandlers, EventRouter
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed

SPEC = fact_spec(events=(EpisodeFailed, EpisodeCancelled))


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


async def test_each_type_of_a_durable_goes_to_its_own_function(server: NatsServer) -> None:
    got: list[tuple[str, str, int]] = []
    router = EventRouter()
    subscriber = router.subscriber(SPEC)

    @subscriber(filter=Carries(EpisodeFailed))
    async def on_failed(event: EpisodeFailed, delivery: CurrentDelivery) -> None:
        got.append(("failed", event.detail, delivery.sequence))

    @subscriber(filter=Carries(EpisodeCancelled))
    async def on_cancelled(event: EpisodeCancelled) -> None:
        got.append(("cancelled", event.episode.episode_id, 0))

    async with running(server, SPEC, setup=lambda bus: bus.include_router(router)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        cancelled = EpisodeCancelled(episode=EpisodeIdentity(episode_id="e"))
        await bus.publish(cancelled, model=MODEL, event_id="b")
        await until(lambda: len(got) == 2)
    assert got == [("failed", "a", 1), ("cancelled", "e", 0)]


async def test_a_durable_with_an_unhandled_type_is_refused_at_start(server: NatsServer) -> None:
    router = EventRouter()

    @router.subscriber(SPEC)(filter=Carries(EpisodeFailed))
    async def on_failed(event: EpisodeFailed) -> None: ...

    with pytest.raises(BusError, match=r"durable tested reads .* which no handler takes"):
        async with running(server, SPEC, setup=lambda bus: bus.include_router(router)):
            pass


async def test_an_event_that_no_function_takes_becomes_a_dead_letter(server: NatsServer) -> None:
    router = EventRouter()

    async def nothing(_: object) -> bool:
        return False

    @router.subscriber(fact_spec())(filter=nothing)
    async def on_failed(event: EpisodeFailed) -> None: ...

    async with (
        running(server, fact_spec(), setup=lambda bus: bus.include_router(router)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(eyes.dead_letters)
        await eyes.settled(fact_spec())


async def test_a_tenant_of_its_own_is_read_by_the_same_durable(server: NatsServer) -> None:
    tenants: list[str] = []
    router = EventRouter()

    @router.subscriber(fact_spec())
    async def on_failed(event: EpisodeFailed, delivery: CurrentDelivery) -> None:
        tenants.append(delivery.tenant)

    async with running(server, fact_spec(), setup=lambda bus: bus.include_router(router)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await bus.publish(failed("b"), model=MODEL, event_id="b", tenant="acme.org")
        await until(lambda: len(tenants) == 2)
    assert tenants == ["default", "acme.org"]


def test_a_router_names_its_durables_before_anything_connects() -> None:
    router = EventRouter(topology(SPEC))
    router.subscriber(SPEC)
    assert router.durables == [SPEC]


def test_a_projection_without_a_function_for_each_type_is_refused() -> None:
    handlers = EventHandlers[None]()
    handlers(EpisodeFailed)(lambda event, _: None)
    with pytest.raises(BusError, match=r"reads \['EpisodeCancelled'\], which no handler takes"):
        EventRouter().projection(SPEC, handlers)
    with pytest.raises(BusError, match="two functions handle EpisodeFailed"):
        handlers(EpisodeFailed)(lambda event, _: None)
