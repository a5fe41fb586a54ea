"""The bus over a real NATS server in TLS: facts travel, and an untrusted server is told nothing."""

import asyncio
import json
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.certificates import Authority, Pair
from tests.libs.event_bus.support import MODEL, failed
from tests.local_servers import NatsServer

from event_bus import BusTimings, EventBus
from event_bus.provision import provision
from service_kit.groups import BusSettings
from upcycle.errors import Unavailable

TIMINGS = BusTimings(publish_budget_s=20, connect_s=3, drain_s=5, pull_s=0.5, close_s=2)


def in_tls(pair: Pair, clients_ca: Path | None = None) -> str:
    """A block of the server's configuration. auto: clients that begin in TLS, and others, are served."""
    files = {"cert_file": pair.certificate, "key_file": pair.key, "ca_file": clients_ca}
    lines = [f"{name}: {json.dumps(str(file))}" for name, file in files.items() if file is not None]
    verify = "verify: true" if clients_ca else ""
    return "\n".join(["tls {", *lines, verify, "handshake_first: auto", "}"])


async def published(settings: BusSettings) -> int:
    """The place of one fact in its stream."""
    bus = EventBus(settings, client_name="test", timings=TIMINGS)
    try:
        await bus.start()
        return (await bus.publish(failed("x"), model=MODEL, event_id="episode.failed/1")).sequence
    finally:
        await bus.stop()


async def test_facts_travel_in_tls_and_only_to_a_server_of_the_authority(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    with NatsServer(tmp_path / "nats", accounts=in_tls(ours.issue("nats"))) as server:
        await provision(trusted := BusSettings(url=server.url, ca=ours.ca))
        assert await published(trusted) == 1
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await published(BusSettings(url=server.url, ca=others.ca))


async def test_a_server_that_asks_for_certificates_gets_one(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    mine, pair = ours.issue("sampler", "sampler"), ours.issue("nats")
    with NatsServer(tmp_path / "nats", accounts=in_tls(pair, ours.ca)) as server:
        known = BusSettings(url=server.url, ca=ours.ca, certificate=mine.certificate, key=mine.key)
        await provision(known)
        assert await published(known) == 1
        with pytest.raises(Unavailable):
            await published(BusSettings(url=server.url, ca=ours.ca))


async def test_nothing_is_said_in_the_clear_to_a_server_that_claims_to_know_no_tls(tmp_path: Path) -> None:
    received = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","tls_required":false}\r\n')
        received.extend(await reader.read(4096))
        writer.close()

    async with await asyncio.start_server(pretend, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = BusSettings(
            url=f"nats://127.0.0.1:{port}",
            user="sampler",
            password=SecretStr("a-password-of-ours"),
            ca=Authority(tmp_path).ca,
        )
        bus = EventBus(settings, client_name="test", timings=TIMINGS)
        with pytest.raises(Unavailable):
            await bus.start()
        await bus.stop()
    assert received, "it was asked"
    assert b"CONNECT" not in received
    assert b"a-password-of-ours" not in received
