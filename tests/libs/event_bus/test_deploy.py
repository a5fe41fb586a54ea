"""The configuration that containers run with keeps the promises of the local one."""

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from event_bus.provision import provision
from local_stack.nats import nats_command
from service_kit.ports import free_ports

CONFIG = Path(__file__).parents[3] / "deploy" / "nats" / "nats.conf"


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """(client port, monitoring port) of a server on the container's configuration, moved to the loopback."""
    port, http_port = free_ports(2)
    text = CONFIG.read_text().replace("0.0.0.0:4222", f"127.0.0.1:{port}")
    text = text.replace("0.0.0.0:8222", f"127.0.0.1:{http_port}").replace('"/data"', f'"{tmp_path / "data"}"')
    (tmp_path / "nats.conf").write_text(text)
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    process = subprocess.Popen([binary, "-c", str(tmp_path / "nats.conf")], stderr=subprocess.DEVNULL)
    yield port, http_port
    process.terminate()
    process.wait(10)


async def test_the_deployed_server_takes_the_topology_and_syncs_always(deployed: tuple[int, int]) -> None:
    port, http_port = deployed
    assert "EVENTS" in (await provision(f"nats://127.0.0.1:{port}")).created

    def variables() -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/varz") as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found

    varz = await asyncio.to_thread(variables)
    assert varz["max_payload"] == 1048576
    jetstream = varz["jetstream"]
    assert isinstance(jetstream, dict)
    assert jetstream["config"]["sync_always"] is True


def test_the_local_server_syncs_always_too(tmp_path: Path) -> None:
    nats_command(tmp_path, port=1, http_port=2)
    assert "sync_interval: always" in (tmp_path / "nats.conf").read_text()
    assert (tmp_path / "nats.conf").stat().st_mode & 0o077 == 0
