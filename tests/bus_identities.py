"""A NATS server on which each service has a key and rights of its own, and provisioning answers them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nats.aio.client import Client
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusTimings, EventBus
from event_bus.accounts import accounts_config
from event_bus.connection import plain_client
from event_bus.keys import load_or_make, seed_file
from event_bus.model_queues import provision_queues
from event_bus.provision import provision
from event_bus.rights import IDENTITIES, OPERATOR, PROVISION, clients_of
from event_bus.service_requests import ServiceRequests
from service_kit.groups import BusSettings

MODEL = "incident"
TIMINGS = BusTimings(publish_budget_s=20, connect_s=30, drain_s=10, pull_s=0.5, close_s=2)


def literal(pattern: str) -> str:
    """A subject that a pattern allows."""
    return ".".join("x" if token in "*>" else token for token in pattern.split("."))


@dataclass(frozen=True, slots=True)
class KeyedServer:
    """Provisioned, with the queues of MODEL."""

    server: NatsServer
    keys: Path

    def settings(self, identity: str) -> BusSettings:
        """How a process of this identity connects."""
        return BusSettings(url=self.server.url, nkey=seed_file(self.keys, identity))

    @asynccontextmanager
    async def client(self, identity: str) -> AsyncIterator[Client]:
        """A connection with this key, and nothing that bounds what it sends."""
        client = await plain_client(self.settings(identity), f"attacker as {identity}")
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def bus(self, service: str) -> AsyncIterator[EventBus]:
        """The bus of a process of a service."""
        name = clients_of(service)[0] if service != OPERATOR else service
        bus = EventBus(self.settings(service), client_name=name, timings=TIMINGS)
        await bus.start()
        try:
            yield bus
        finally:
            await bus.stop()


@asynccontextmanager
async def keyed_server(folder: Path) -> AsyncIterator[KeyedServer]:
    """Running until the end of the block, with what answers services."""
    keys = folder / "keys"
    accounts = accounts_config(load_or_make(keys, IDENTITIES))
    async with NatsServer(folder / "nats", accounts=accounts) as server:
        keyed = KeyedServer(server, keys)
        await provision(keyed.settings(PROVISION))
        await provision_queues(keyed.settings(PROVISION), [MODEL])
        requests, stop = ServiceRequests(keyed.settings(PROVISION)), asyncio.Event()
        running = asyncio.create_task(requests.run(stop))
        try:
            await until(lambda: requests.ready() is None, "answers to services")
            yield keyed
        finally:
            stop.set()
            await running
