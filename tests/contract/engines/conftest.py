"""Both engines behind one fixture: what passes here is the wire that sampler, gateway and supervisor use."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.services.policy_engine.policies import Shape, make_policy, make_tool_caller
from tests.services.policy_engine.reference import canary_rows

from blob_store import BlobRef
from engine_client import EngineClient
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.domain import CanaryRow, EngineTarget, Policy, ServedPolicy
from policy_engine.usecases.reload import ReloadProtocol

MODEL = "incident"
REPOSITORY = Path(__file__).resolve().parents[3]
VLLM_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"
# Sizes that both engines support: vLLM's CPU attention starts at heads of 32.
SHAPE = Shape(layers=2, hidden=128, inner=192, heads=4, kv_heads=2, head_dim=32, context=512, scale=0.1)


def policy_of(directory: Path, version: int, *, canary_of: Path | None = None) -> Policy:
    """A version as the supervisor has it after fetching; `canary_of`: whose scores its canary claims."""
    rows = tuple(
        CanaryRow(tuple(ids), tuple(logprobs)) for ids, logprobs in canary_rows(canary_of or directory)
    )
    target = EngineTarget(version, f"digest-{version}", BlobRef("k", "0" * 64, 1))
    return Policy(target, directory, rows, "float32", weights_digest=directory.name)


@dataclass
class EngineUnderTest:
    """A running engine that serves version 0, and the other versions it may be given."""

    kind: str
    host: EngineProcess
    client: EngineClient
    folder: Path

    @property
    def url(self) -> str:
        return self.host.base_url

    def policy(self, version: int, *, canary_of: Path | None = None) -> Policy:
        return policy_of(self.directory(version), version, canary_of=canary_of)

    def directory(self, version: int) -> Path:
        return make_policy(self.folder / "policies" / f"v{version}", seed=700 + version, shape=SHAPE)

    def protocol(self, *, recompute_running: bool = True) -> ReloadProtocol:
        return ReloadProtocol(self.host, MODEL, recompute_running=recompute_running, clock=time.monotonic)

    def serving(self, version: int) -> ServedPolicy:
        return ServedPolicy(self.policy(version), 0.0)

    async def restore(self) -> None:
        """Version 0, running, whatever the test did."""
        await self.client.pause("abort")
        await self.client.reload_weights(self.host.prepare(self.policy(0)))
        await self.client.update_weight_version("0")
        await self.client.reset_prefix_cache(recompute_running=True)
        await self.client.resume()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and parsed body, whatever the status."""
        key = {"Authorization": f"Bearer {self.host.admin_key}"}
        asked = aiohttp.ClientSession(headers=key)
        async with asked as session, session.post(self.url + path, json=body) as reply:
            return reply.status, await reply.json(content_type=None)

    async def get(self, path: str) -> Any:
        """The parsed answer."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as reply:
            return await reply.json()

    async def is_paused(self) -> bool:
        """Whether `pause` is in force."""
        return bool((await self.get("/is_paused"))["is_paused"])

    async def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))
        )


async def engine_on(
    kind: str, folder: Path, *, calls_tools: bool = False, hang_s: float = 120.0, **options: Any
) -> EngineUnderTest:
    """A process serving version 0 of the suite's model, or the policy that always calls a tool.

    options: of EngineOptions.
    """
    made = EngineOptions(MODEL, **{"max_num_seqs": 64, "vllm_python": VLLM_PYTHON, **options})
    engine_kind = EmbeddedKind(made) if kind == "embedded" else VllmKind(made)
    log_path = folder / f"{kind}.log"
    host = EngineProcess(engine_kind, "127.0.0.1", 0, start_s=900.0, log_path=log_path, hang_s=hang_s)
    directory = folder / "policies" / "v0"
    if calls_tools:
        make_tool_caller(directory, SHAPE)
    else:
        make_policy(directory, seed=700, shape=SHAPE)
    engine = await host.start(policy_of(directory, 0))
    assert isinstance(engine, EngineClient)
    await engine.update_weight_version("0")
    return EngineUnderTest(kind, host, engine, folder)


ENGINES = ["embedded", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1200)])]


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=ENGINES)
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EngineUnderTest]:
    """One process per engine and session."""
    folder = tmp_path_factory.mktemp(f"engine-{request.param}")
    under_test = await engine_on(request.param, folder)
    yield under_test
    await under_test.host.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(loop_scope="session")
async def engine(running: EngineUnderTest) -> AsyncIterator[EngineUnderTest]:
    """The engine, serving version 0 and running; put back into that state after the test."""
    yield running
    async with asyncio.timeout(60):
        await running.restore()
