"""Servers that tests of several folders share. They are the real programs: nats-server is up in under 0.1 s."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from local_stack.nats import NatsServer

NatsFactory = Callable[[], NatsServer]


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A provisioned nats-server of this test session. Tests keep apart by model, pool and event ids."""
    import asyncio

    from event_bus.provision import provision

    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        asyncio.run(provision(server.url))
        yield server.url


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsFactory]:
    """Starts fresh, empty servers that the test may kill and restart; they end with the test."""
    with ExitStack() as servers:
        started: list[NatsServer] = []

        def start() -> NatsServer:
            server = NatsServer(tmp_path / f"nats-{len(started)}")
            server.start()
            started.append(server)
            servers.callback(server.stop)
            return server

        yield start
