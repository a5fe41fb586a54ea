"""An engine goes on serving while its events cannot be published."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import grpc
import pytest
from tests.services.policy_engine.doubles import policy

from engine_client import EngineState
from episodes import Channel
from event_bus import BusError, EventBus
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from grpc_edge.status import abort
from policy_engine.adapters.announcer import PlatformAnnouncer
from policy_engine.domain import HeldFacts, LeaseFacts, ServedPolicy
from policy_engine.wire import EngineIdentity
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    RegistryServiceStub,
    add_RegistryServiceServicer_to_server,
)
from upcycle.errors import Unavailable
from upcycle.rpc import connect


class BrokenBus:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def publish(self, *_: object, **__: object) -> None:
        raise self._error


@pytest.mark.parametrize("error", [Unavailable("NATS"), BusError("refused")])
async def test_an_event_that_cannot_be_published_is_logged_and_the_engine_serves(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    who = EngineIdentity("e-1", "incident", Channel.LATEST, "embedded")
    bus = cast("EventBus", BrokenBus(error))
    announcer = PlatformAnnouncer(who, bus, cast("Any", None), now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    await announcer.ready(ServedPolicy(policy(3), 0.0))
    assert [record.message for record in caplog.records] == ["event_lost"]


class RegistryOfTheReleaseBefore(RegistryServiceServicer):
    """Refuses a lease with fields that it does not know, by name."""

    def __init__(self) -> None:
        self.leases: list[registry_pb2.EngineLease] = []

    async def RenewEngineLease(self, request: pb.RenewEngineLeaseRequest, context: Any) -> Any:
        self.leases.append(request.lease)
        if request.lease.max_held or request.lease.pinned_versions:
            message = "the request has field 15 in RenewEngineLeaseRequest.lease"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_FIELD", message)
        if request.lease.model == "unknown":
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "LEASE_INVALID", "no such model")
        return pb.RenewEngineLeaseResponse()


async def test_a_registry_of_the_release_before_lists_the_engine_without_what_it_holds() -> None:
    registry = RegistryOfTheReleaseBefore()  # type: ignore[abstract] # its other rpcs answer UNIMPLEMENTED
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_RegistryServiceServicer_to_server, registry)
    await server.start()
    facts = LeaseFacts(
        "http://127.0.0.1:1", EngineState.READY, "", ServedPolicy(policy(3), 0.0), HeldFacts((), 4, (2,), {})
    )
    try:
        async with connect(server.address) as channel:

            def announcer(model: str) -> PlatformAnnouncer:
                who = EngineIdentity("e-1", model, Channel.LATEST, "embedded")
                bus, stub = cast("EventBus", None), RegistryServiceStub(channel)
                return PlatformAnnouncer(who, bus, stub, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))

            assert await announcer("incident").renew_lease(facts, 10.0) == []
            with pytest.raises(Unavailable, match="LEASE_INVALID"):
                await announcer("unknown").renew_lease(replace(facts, beside=HeldFacts()), 10.0)
    finally:
        await server.stop()
    first, second, _ = registry.leases
    assert (first.max_held, second.max_held, list(second.pinned_versions)) == (4, 0, [])
    assert (second.version, second.base_url) == (first.version, first.base_url) == (3, "http://127.0.0.1:1")
