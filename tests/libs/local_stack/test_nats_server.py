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
from tests.local_servers import NatsServer
from tests.support.waiting import until

from local_stack.nats import NatsLogin, NatsServerError, nats_command


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
