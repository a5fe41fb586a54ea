"""vLLM as its supervisor starts it, in the hands of one who reaches its port; and a stand-in with the same
command line where there is no vLLM."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.attacks.test_engines import read_of_all
from tests.certificates import Authority
from tests.contract.engines.conftest import MODEL, SHAPE, VLLM_PYTHON
from tests.services.policy_engine.policies import make_policy
from tests.support.keyless_calls import WRONG_HEADERS

from blob_store import BlobRef
from engine_client import EngineClient, EngineRejected
from policy_engine.adapters.engine_kinds import EngineCertificate, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.adapters.in_vllm.upcycle_vllm_wall import KEY_VARIABLE, OPEN_ROUTES
from policy_engine.domain import EngineTarget, Policy
from upcycle.tls import ClientTls, current, use

STAND_IN = Path(__file__).parent / "stand_in_vllm"
ROUTES = (
    "/abort_requests", "/collective_rpc", "/finish_weight_update", "/generative_scoring",
    "/inference/v1/abort_requests", "/init_weight_transfer_engine", "/invocations", "/is_scaling_elastic_ep",
    "/pause", "/ping", "/release_kv_cache_memory", "/reset_encoder_cache", "/reset_mm_cache",
    "/reset_prefix_cache", "/resume", "/scale_elastic_ep", "/shutdown_weight_transfer_engine", "/sleep",
    "/start_draft_weight_update", "/start_profile", "/start_weight_update", "/stop_profile",
    "/update_weight_version", "/update_weights", "/v1/load_lora_adapter", "/v1/messages", "/v1/responses",
    "/v1/unload_lora_adapter", "/wake_up", "/weight_checker",
)  # fmt: skip
"""Posted to in vLLM 0.32 with everything on, and not open."""
READ = ("/docs", "/get_world_size", "/is_sleeping", "/kv_event_sources", "/openapi.json", "/server_info")
BODY = {"method": "reload_weights", "kwargs": {"weights_path": "/tmp"}, "new_version": "666"}
LIMIT = 100_000
KINDS = ["stand-in", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(600)])]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Victim:
    """A running engine. trusted: what a caller of its port trusts."""

    host: EngineProcess
    client: EngineClient
    trusted: ssl.SSLContext | bool = True

    async def asked(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        """Status and body, of somebody without its key."""
        async with (
            aiohttp.ClientSession(self.host.base_url) as session,
            session.request(method, path, ssl=self.trusted, **more) as reply,
        ):
            assert reply.headers["x-request-id"]
            return reply.status, await reply.text()


@asynccontextmanager
async def started(
    kind: str, folder: Path, certificate: EngineCertificate | None = None
) -> AsyncIterator[EngineProcess]:
    python = VLLM_PYTHON if kind == "vllm" else Path(sys.executable)
    options = EngineOptions(
        MODEL, max_num_seqs=8, vllm_python=python, vllm_body_bytes=LIMIT, certificate=certificate
    )
    host = EngineProcess(VllmKind(options), "127.0.0.1", 0, start_s=420.0, log_path=folder / "engine.log")
    directory = make_policy(folder / "policies" / "v0", seed=700, shape=SHAPE)
    target = EngineTarget(0, "d", BlobRef("k", "0" * 64, 1))
    try:
        with variables_for(kind):
            await host.start(Policy(target, directory, (), "float32", "w"))
        yield host
    finally:
        await host.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def victim(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Victim]:
    """One for all tests: vLLM takes a minute to start."""
    async with started(request.param, tmp_path_factory.mktemp(request.param)) as host:
        assert isinstance(host._client, EngineClient)
        yield Victim(host, host._client)


@contextmanager
def variables_for(kind: str) -> Iterator[None]:
    """Of the supervisor's process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("UPCYCLE_EDGE_BODY_S", "1")
        if kind == "stand-in":
            patched.setenv("PYTHONPATH", str(STAND_IN))
        yield


async def test_a_caller_without_its_key_samples_from_vllm_and_gives_no_orders(victim: Victim) -> None:
    served = await victim.client.weight_version()
    for given in WRONG_HEADERS:
        headers = {} if given is None else {"Authorization": given}
        for method, paths in (("POST", ROUTES), ("GET", READ), ("PUT", ("/pause",))):
            for path in paths:
                status, said = await victim.asked(method, path, json=BODY, headers=headers)
                assert (status, KEY_VARIABLE in said) == (401, True), (method, path, given)
    assert not await is_paused(victim)
    sampling = {"model": MODEL, "prompt": [1, 90, 91], "max_tokens": 2}
    assert (await victim.asked("POST", "/v1/completions", json=sampling))[0] == 200
    assert await victim.client.weight_version() == served


async def test_every_route_that_vllm_lists_is_open_by_name_or_needs_the_key(victim: Victim) -> None:
    """Also those of a later vLLM."""
    key = {"Authorization": f"Bearer {victim.host.admin_key}"}
    status, said = await victim.asked("GET", "/openapi.json", headers=key)
    assert status == 200
    listed = {
        (method.upper(), path)
        for path, methods in json.loads(said)["paths"].items()
        for method in methods
    }  # fmt: skip
    assert {("POST", "/pause"), ("POST", "/v1/completions")} <= listed
    for method, path in listed - OPEN_ROUTES:
        assert (await victim.asked(method, path, json=BODY))[0] == 401, (method, path)
    assert not await is_paused(victim)


async def test_its_supervisor_steers_vllm(victim: Victim) -> None:
    await victim.client.pause("keep")
    assert await is_paused(victim)
    await victim.client.resume()
    await victim.client.update_weight_version("7")
    assert await victim.client.weight_version() == "7"
    async with EngineClient(victim.host.base_url, admin_key="another") as stranger:
        with pytest.raises(EngineRejected, match=KEY_VARIABLE):
            await stranger.pause("abort")


async def test_large_and_slow_bodies_do_not_reach_vllm(victim: Victim) -> None:
    status, said = await victim.asked("POST", "/v1/completions", data=b"x" * (LIMIT + 1))
    assert (status, "request_id" in said) == (413, True)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"model": '
        await asyncio.sleep(60)

    status, said = await asyncio.wait_for(victim.asked("POST", "/v1/completions", data=slow()), 30)
    assert (status, "request_id" in said) == (408, True)


async def test_no_websocket_to_vllm_is_opened(victim: Victim) -> None:
    async with aiohttp.ClientSession(victim.host.base_url) as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect("/v1/realtime")
    assert refused.value.status in (401, 403)


async def test_the_key_of_vllm_stands_in_no_command_line(victim: Victim) -> None:
    key = victim.host.admin_key.encode()
    assert len(key) >= 32
    assert not [line for line in read_of_all("cmdline") if key in line]
    assert key not in victim.host._log_path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
async def test_behind_tls_the_wall_stands_too(kind: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    pair, before = authority.issue("engine"), current()
    use(ClientTls(authority.ca))
    try:
        certificate = EngineCertificate(pair.certificate, pair.key)
        async with started(kind, tmp_path, certificate) as host:
            assert host.base_url.startswith("https://")
            client = host._client
            assert isinstance(client, EngineClient)
            victim = Victim(host, client, ssl.create_default_context(cafile=str(authority.ca)))
            assert (await victim.asked("POST", "/pause"))[0] == 401
            await client.pause("keep")
            assert await is_paused(victim)
            await client.resume()
    finally:
        use(before)


async def is_paused(victim: Victim) -> bool:
    """As it tells everybody."""
    return bool(json.loads((await victim.asked("GET", "/is_paused"))[1])["is_paused"])


async def test_no_route_that_steers_is_open() -> None:
    assert not {path for _, path in OPEN_ROUTES} & {*ROUTES, *READ}
