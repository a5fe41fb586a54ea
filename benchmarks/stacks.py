"""The whole platform, as real processes, for the time of a measurement."""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from local_stack.importing import import_policy
from local_stack.stack import Stack, StackSettings
from service_kit.leash import leashed
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_EVAL, Channel, PolicySelector
from upcycle.api.registry.v1.registry_pb2 import ENGINE_STATE_READY, EngineLease
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, RenewEngineLeaseRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.taskset.v1.service_pb2 import RegisterTasksetRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, Run, RunSpec, SamplingConfig
from upcycle.platform import Addresses, Platform
from upcycle.rpc import connect
from upcycle.run_client import follow_run, submit_run
from upcycle.tasks import Taskset
from upcycle.wire import taskset_to_wire

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

REPOSITORY = Path(__file__).resolve().parents[1]
POLICY_DIR = REPOSITORY / "examples" / "incident" / "policy"
MODEL = "incident"
INSTANT = "benchmarks.instant_engine"
RUN_LIMIT_S = 1500.0
_RENEW_S, _TTL_S = 10.0, 60.0


class BenchmarkFailed(Exception):
    """What was measured did not do what it is measured for."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A running platform and a client of it. engine_url: of the instant engine, where there is one."""

    stack: Stack
    platform: Platform
    addresses: Addresses
    engine_url: str = ""

    async def register(self, taskset: Taskset) -> None:
        """Make a taskset known."""
        request = RegisterTasksetRequest(taskset=taskset_to_wire(taskset))
        await self.platform.tasksets.RegisterTaskset(request, timeout=60)

    async def complete(self, spec: RunSpec) -> Run:
        """Submit a run and follow it to its end. Raises BenchmarkFailed where it does not complete."""
        run = await submit_run(self.platform, spec)
        done = await follow_run(self.platform, run.run_id, timeout_s=RUN_LIMIT_S)
        if done.state != RUN_STATE_COMPLETED:
            raise BenchmarkFailed(f"run {done.run_id} did not complete: {done.failure}")
        return done


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    """Token ids of a prompt for the incident policy; equal seeds, equal ids."""
    vocabulary = json.loads((POLICY_DIR / "config.json").read_text())["vocab_size"]
    # Control tokens are the last ones: they stay out.
    return random.Random(seed).choices(range(vocabulary // 2), k=num_tokens)


def platform_variables(where: Addresses) -> dict[str, str]:
    """For a command that a benchmark starts as a process: where the services are, and the operator's key."""
    peers = {f"UPCYCLE_PEERS_{name.upper()}": address for name, address in where.peers.items()}
    return {**peers, "UPCYCLE_OPERATOR_KEY": where.platform_key() or ""}


@asynccontextmanager
async def bench(
    *, model: str | None = None, extra_env: Mapping[str, str] | None = None
) -> AsyncIterator[Bench]:
    """Everything up, in a folder that is removed afterwards. model: start policy engines for it, on the
    incident policy. Heads are not watched unless extra_env says so: what is measured plays alone."""
    with tempfile.TemporaryDirectory(prefix="upcycle-bench-") as folder:
        settings = StackSettings(
            data_dir=Path(folder),
            model=model,
            model_dir=POLICY_DIR if model else None,
            environment_roots=(REPOSITORY,),
            ephemeral_ports=True,
            extra_env={"CHECKPOINT_REGISTRY_WATCH_PAIRS": "0", **(extra_env or {})},
        )
        async with Stack(settings) as stack:
            addresses = Addresses(
                stack.peers,
                "the benchmark's stack",
                stack.gateway_key_file,
                operator_key_file=stack.operator_key_file,
            )
            async with Platform(addresses) as platform:
                yield Bench(stack, platform, addresses)


@asynccontextmanager
async def instant_bench(
    engine: str = INSTANT, *, channel: "Channel.ValueType" = CHANNEL_LATEST, **extra_env: str
) -> AsyncIterator[Bench]:
    """The platform with an engine that answers at once. engine: the module of its program."""
    async with bench(extra_env=extra_env) as running:
        await import_policy(
            running.stack.peers["registry"],
            MODEL,
            POLICY_DIR,
            key=running.addresses.platform_key(),
            timeout_s=60,
        )
        as_service = connect(running.stack.peers["registry"], api_key=running.stack.service_key)
        async with _instant_engine(engine) as url, as_service as connection:
            registry: RegistryServiceAsyncStub = RegistryServiceStub(connection)
            await _renew(registry, url, channel)
            renewing = asyncio.create_task(_keep_renewing(registry, url, channel))
            try:
                yield replace(running, engine_url=url)
            finally:
                renewing.cancel()


def evaluation(taskset: str, *, max_tokens: int = 32) -> RunSpec:
    """One episode of each task, by the newest weights."""
    return RunSpec(
        taskset=taskset,
        purpose=PURPOSE_EVAL,
        policy=PolicySelector(model=MODEL, channel=CHANNEL_LATEST),
        group_size=1,
        sampling=SamplingConfig(temperature=1.0, max_turns=6, max_tokens_per_turn=max_tokens),
        episode_deadline_s=120,
    )


@asynccontextmanager
async def _instant_engine(module: str) -> AsyncIterator[str]:
    argv = leashed((sys.executable, "-m", module, str(POLICY_DIR)))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=REPOSITORY)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(30):
            said = json.loads(await process.stdout.readline())
        yield f"http://127.0.0.1:{said['port']}"
    finally:
        process.stdin.close()
        await process.wait()


async def _keep_renewing(
    registry: "RegistryServiceAsyncStub", url: str, channel: "Channel.ValueType"
) -> None:
    while True:
        await asyncio.sleep(_RENEW_S)
        await _renew(registry, url, channel)


async def _renew(registry: "RegistryServiceAsyncStub", url: str, channel: "Channel.ValueType") -> None:
    base = (await registry.GetModel(GetModelRequest(model=MODEL), timeout=10)).base
    lease = EngineLease(
        engine_id="instant",
        base_url=url,
        model=MODEL,
        channel=channel,
        version=base.version,
        digest=base.digest,
        state=ENGINE_STATE_READY,
        engine_kind="embedded",  # whose dialect it speaks
        manifest=base.manifest,
    )
    await registry.RenewEngineLease(RenewEngineLeaseRequest(lease=lease, ttl_s=_TTL_S), timeout=10)
