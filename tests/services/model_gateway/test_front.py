"""The front that deploy/edge ships, with its addresses and two limits changed, before a real gateway."""

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from tests.certificates import Authority
from tests.services.model_gateway.conftest import KEY, Gateway
from tests.services.model_gateway.engine_double import EngineDouble
from tests.support.waiting import until

from service_kit.groups import EdgeSettings
from service_kit.ports import free_ports

ROOT = Path(__file__).parents[3]
ENVOY = ROOT / ".venv-edge/bin/envoy"
CONNECTIONS = 20

pytestmark = pytest.mark.edge


@dataclass
class Front:
    """A running Envoy."""

    port: int
    trusts: ssl.SSLContext

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def http(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(ssl=self.trusts))

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trusts)


def shipped(port: int, gateway: Gateway, authority: Authority) -> dict[str, Any]:
    """The file, with the addresses of this test and small numbers."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy/edge/envoy.yaml").read_text())
    listener, cluster = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    chain = listener["filter_chains"][0]
    pair = authority.issue("edge")
    tls = chain["transport_socket"]["typed_config"]["common_tls_context"]
    tls["tls_certificates"][0]["certificate_chain"]["filename"] = str(pair.certificate)
    tls["tls_certificates"][0]["private_key"]["filename"] = str(pair.key)
    limit, manager = (one["typed_config"] for one in chain["filters"])
    limit["max_connections"] = CONNECTIONS
    manager["request_headers_timeout"] = "0.5s"
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = gateway.port
    endpoint["health_check_config"]["port_value"] = gateway.service.http_port
    check = cluster["health_checks"][0]
    check |= {"interval": "0.2s", "no_traffic_interval": "0.2s"}
    return config


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"edge": EdgeSettings(front="127.0.0.1", connections_per_peer=1)}


@pytest.fixture
async def front(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Front]:
    (port,), authority = free_ports(1), Authority(tmp_path / "ca")
    config = tmp_path / "envoy.yaml"
    config.write_text(yaml.safe_dump(shipped(port, gateway, authority)))
    with (tmp_path / "envoy.log").open("wb") as log:
        envoy = await asyncio.create_subprocess_exec(
            *(ENVOY, "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "warning"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    made = Front(port, ssl.create_default_context(cafile=str(authority.ca)))

    async def answers() -> bool:
        try:
            async with made.http() as http, http.get("/openapi.json") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    try:
        await until(answers, "the front to pass a request on")
        yield made
    finally:
        os.killpg(envoy.pid, signal.SIGTERM)
        await envoy.wait()


async def test_answers_and_streams_pass_over_tls_for_many_at_once(front: Front, served: EngineDouble) -> None:
    call = {"model": "incident", "messages": [{"role": "user", "content": "hello"}], "stream": True}

    async def streamed(http: aiohttp.ClientSession) -> list[Any]:
        async with http.post("/v1/chat/completions", json=call, headers={"x-api-key": KEY}) as answer:
            assert answer.status == 200
            events = [line.removeprefix(b"data: ").strip() async for line in answer.content if line.strip()]
        assert events[-1] == b"[DONE]"
        return [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]

    async with front.http() as http:
        said = await asyncio.gather(*(streamed(http) for _ in range(8)))
    assert said == [said[0]] * 8
    assert len(said[0]) > 1


async def test_a_slow_head_is_ended_with_the_envelope(front: Front) -> None:
    reader, writer = await front.open()
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n")
    answer = (await reader.read()).decode()
    assert answer.startswith("HTTP/1.1 408")
    said = json.loads(answer.partition("\r\n\r\n")[2])
    assert said["error"]["type"] == "edge_error"
    writer.close()


async def test_large_heads_and_bodies_are_refused_with_an_id(front: Front) -> None:
    async with front.http() as http:
        async with http.get("/v1/models", headers={f"x-{n}": "v" * 1000 for n in range(40)}) as answer:
            assert answer.status == 431
        async with http.post("/v1/chat/completions", data=b"x" * (9 << 20)) as answer:
            said = await answer.json()
            assert (answer.status, said["error"]["type"]) == (413, "edge_error")
            assert answer.headers["x-request-id"] == said["request_id"]
        async with http.get("/none") as answer:
            assert (await answer.json())["error"]["code"] == "unknown_url"


async def test_connections_are_bounded_and_places_come_back(front: Front) -> None:
    held = [await asyncio.open_connection("127.0.0.1", front.port) for _ in range(3 * CONNECTIONS)]

    async def is_open(reader: asyncio.StreamReader) -> bool:
        try:
            async with asyncio.timeout(0.01):
                return bool(await reader.read(1))
        except TimeoutError:
            return True
        except ConnectionError:
            return False

    async def bounded() -> bool:
        return sum([await is_open(reader) for reader, _ in held]) <= CONNECTIONS

    await until(bounded, "the front to end what is beyond its limit")
    for _, writer in held:
        writer.close()

    async def answers() -> bool:
        try:
            async with front.http() as http, http.get("/openapi.json") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    await until(answers, "a place to come back")


async def test_a_gateway_that_is_not_ready_is_asked_no_more(front: Front, gateway: Gateway) -> None:
    gateway.service._phase = "stopping"  # what /readyz says from the first moment of a stop

    async def refused() -> bool:
        async with front.http() as http, http.get("/openapi.json") as answer:
            return answer.status == 503 and "no_healthy_upstream" in await answer.text()

    await until(refused, "the front to see that the gateway stops")
    gateway.service._phase = "running"
