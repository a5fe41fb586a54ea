"""Engines that hang, and engines of somebody else that are started again under the same address."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.contract.engines.conftest import (
    ENGINES,
    MODEL,
    SHAPE,
    VLLM_PYTHON,
    EngineUnderTest,
    engine_on,
    policy_of,
)
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from engine_client import Completion, EngineClient, SamplingParams
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import AttachedEngine
from policy_engine.domain import Policy, ServedPolicy
from policy_engine.ports import EngineControl
from policy_engine.usecases.reload import ReloadProtocol
from service_kit.leash import leashed
from service_kit.ports import free_ports

pytestmark = pytest.mark.asyncio(loop_scope="function")

PROMPT = [1, *range(30, 60)]
LONG = SamplingParams(max_tokens=400, temperature=1.0, ignore_eos=True)
KEY = "of-an-engine-of-somebody-else-0123456789"


@pytest.mark.vllm
@pytest.mark.timeout(1200)
async def test_a_vllm_whose_core_hangs_counts_as_dead_although_it_says_that_it_is_well(
    tmp_path: Path,
) -> None:
    engine = await engine_on("vllm", tmp_path, hang_s=4.0)
    host = engine.host
    try:
        assert host.failure() is None
        core = _engine_core_of(host.pid)
        os.kill(core, signal.SIGSTOP)
        async with asyncio.timeout(120):
            await host.died()
        assert "computed no token" in (host.failure() or "")
        assert await engine.client.health(), "its health says nothing of its core"
    finally:
        await host.stop()
    await until(lambda: not Path(f"/proc/{core}").exists(), "the core to end with its server")


def _engine_core_of(group: int) -> int:
    """vLLM's process that computes, in the process group of its server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if os.getpgid(int(folder.name)) == group and b"EngineCore" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    (core,) = found
    return core


@dataclass
class Foreign:
    """An engine that its owner starts, and starts again, at one address."""

    kind: EmbeddedKind | VllmKind
    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, directory: Path) -> None:
        """With the weights of that directory."""
        command = self.kind.command(directory, "127.0.0.1", self.port)
        with (self.folder / "foreign.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *leashed(command.argv),
                stdout=log,
                stderr=log,
                env={**os.environ, **command.env, self.kind.admin_key_variable: KEY},
                start_new_session=True,
            )

    async def kill(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def foreign_on(kind: str, folder: Path) -> AsyncIterator[Foreign]:
    options = EngineOptions(MODEL, max_num_seqs=8, vllm_python=VLLM_PYTHON)
    found = Foreign(EmbeddedKind(options) if kind == "embedded" else VllmKind(options), folder)
    try:
        yield found
    finally:
        await found.kill()


@pytest.mark.parametrize("kind", ENGINES)
async def test_an_attached_engine_that_its_owner_replaces_is_given_the_served_version_again(
    kind: str, tmp_path: Path
) -> None:
    base = make_policy(tmp_path / "policies" / "v0", seed=700, shape=SHAPE)
    wanted = policy_of(make_policy(tmp_path / "policies" / "v3", seed=703, shape=SHAPE), 3)
    async with foreign_on(kind, tmp_path) as foreign:
        directory = foreign.kind.prepare(policy_of(base, 0))
        await foreign.start(directory)
        host = AttachedEngine(foreign.kind, foreign.url, start_s=900.0, admin_key=KEY)
        protocol = ReloadProtocol(host, MODEL, recompute_running=False, clock=asyncio.get_running_loop().time)
        try:
            first = await host.start(wanted)
            await _check_served(protocol, first, wanted)
            watch = asyncio.create_task(host.died())
            await foreign.kill()
            await foreign.start(directory)
            await asyncio.wait_for(watch, 900)
            assert host.failure() is not None
            again = await host.start(wanted)
            assert host.failure() is None
            await _check_served(protocol, again, wanted)
        finally:
            await host.stop()


async def _check_served(protocol: ReloadProtocol, engine: EngineControl, wanted: Policy) -> None:
    """It is proven, and what it samples is the version's."""
    served: ServedPolicy = await protocol.adopt(engine, wanted)
    assert served.canary_max_abs_diff < 1e-3
    assert isinstance(engine, EngineClient)
    made = await engine.generate(MODEL, PROMPT, SamplingParams(max_tokens=8, temperature=1.0))
    assert [span.version for span in made.version_spans] == [3]
    expected = reference_logprobs(wanted.directory, [*PROMPT, *made.token_ids])[len(PROMPT) - 1 :]
    assert made.logprobs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ENGINES)
async def test_an_engine_that_is_drained_finishes_what_it_samples(kind: str, tmp_path: Path) -> None:
    engine = await engine_on(kind, tmp_path)
    try:
        asked = await _under_way(engine)
        await engine.host.drain(120.0)
        assert (await engine.client.load()).is_idle
        made = await asyncio.wait_for(asyncio.gather(*asked), 10)
        assert [len(one.token_ids) for one in made] == [LONG.max_tokens] * len(asked)
    finally:
        await engine.host.stop()


async def _under_way(engine: EngineUnderTest) -> list[asyncio.Task[Completion]]:
    """Generations that were seen running; an engine that goes on while this process is paused ends some."""
    while True:
        asked = [asyncio.create_task(engine.client.generate(MODEL, PROMPT, LONG)) for _ in range(4)]
        while not all(one.done() for one in asked):
            if (await engine.client.load()).num_running:
                return asked
