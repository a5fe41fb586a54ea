"""nats-server as a local program: it is ready when it says so, keeps its data over a crash, and errors are
clear.
"""

import asyncio
import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import nats
import pytest
from pydantic import SecretStr
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus.accounts import accounts_config
from event_bus.connection import plain_client
from event_bus.keys import load_or_make, seed_file
from event_bus.rights import IDENTITIES, OPERATOR
from local_stack.nats import NatsLogin, NatsServerError, nats_command
from service_kit.groups import BusSettings


async def test_data_and_addresses_survive_kill_9(tmp_path: Path) -> None:
    async with NatsServer(tmp_path) as server:
        address = (server.url, server.monitor_url)
        client = await nats.connect(server.url, reconnect_time_wait=0, max_reconnect_attempts=-1)
        stream = client.jetstream()
        await stream.add_stream(name="S", subjects=["s"])
        await stream.publish("s", b"kept")
        for end in (server.kill, server.stop):
            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)
            assert (server.url, server.monitor_url) == address
        await until(lambda: client.is_connected)
        assert (await stream.get_msg("S", 1)).data == b"kept"
        await client.close()


def test_a_server_is_durable_from_its_first_message(tmp_path: Path) -> None:
    with NatsServer(tmp_path) as server:
        varz = variables(server)
    assert varz["jetstream"]["config"]["sync_always"] is True
    assert varz["host"] == "127.0.0.1"


def variables(server: NatsServer) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.monitor_url}/varz") as answer:  # noqa: S310 - a loopback http URL
        found: dict[str, Any] = json.loads(answer.read())
        return found


async def test_a_login_is_asked_for(tmp_path: Path) -> None:
    with NatsServer(tmp_path, login=NatsLogin("u", 'pa"ss')) as server:
        client = await nats.connect(server.url, user="u", password='pa"ss')
        assert client.is_connected
        await client.close()
        with pytest.raises(nats.errors.Error):
            await nats.connect(server.url, allow_reconnect=False, connect_timeout=30)


def test_a_taken_port_is_refused_with_what_the_server_printed(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = NatsServer(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(NatsServerError, match=r"(?s)nats-server ended with 1 .*address already in use"):
            server.start(timeout_s=30)


def test_a_server_that_is_used_before_its_start_or_started_twice_is_refused(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    with pytest.raises(NatsServerError, match="start it first"):
        _ = server.url
    with pytest.raises(NatsServerError, match="not running"):
        _ = server.pid
    with server, pytest.raises(NatsServerError, match="already runs as pid"):
        server.start()
    server.stop()


def test_the_command_starts_nothing(tmp_path: Path) -> None:
    argv = nats_command(tmp_path / "new", port=4222, http_port=8222)
    assert argv[-1] == str(tmp_path / "new" / "nats.conf")
    assert not (tmp_path / "new" / "js").exists()


async def test_streams_stay_when_services_get_keys_and_when_they_share_a_user_again(tmp_path: Path) -> None:
    """A server keeps the streams of each account in a folder of its own."""
    accounts = accounts_config(load_or_make(tmp_path / "keys", IDENTITIES))
    login = NatsLogin("upcycle", "p")
    shared = BusSettings(url="nats://127.0.0.1:1", user="upcycle", password=SecretStr("p"))
    keyed = BusSettings(url="nats://127.0.0.1:1", nkey=seed_file(tmp_path / "keys", OPERATOR))
    found = []
    for settings, access in (
        (shared, {"login": login}),
        (keyed, {"accounts": accounts}),
        (shared, {"login": login}),
    ):
        async with NatsServer(tmp_path / "nats", **access) as server:
            client = await plain_client(settings.model_copy(update={"url": server.url}), "test")
            jetstream = client.jetstream()
            await jetstream.add_stream(name="S", subjects=["s"])
            found.append((await jetstream.publish("s", b"kept")).seq)
            await client.close()
    assert found == [1, 2, 3]
