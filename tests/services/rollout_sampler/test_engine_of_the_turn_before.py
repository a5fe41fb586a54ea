"""A turn goes to the engine that sampled the one before: on two real engines, so much of the prompts is not
computed again."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
from tests.services.policy_engine.policies import make_policy

from blob_store import BlobRef
from engine_client import EngineClient, SamplingParams
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.domain import EngineTarget, Policy
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, Usage
from upcycle.api.registry.v1 import registry_pb2, service_pb2

WANTED = PolicyWanted("m0")


@asynccontextmanager
async def running_engine(folder: Path, *, places: int) -> AsyncIterator[str]:
    """The embedded engine, as a supervisor starts it; its address."""
    directory = make_policy(folder / "policies" / "v3", seed=7)
    kind = EmbeddedKind(EngineOptions("m0", max_num_seqs=places))
    host = EngineProcess(kind, "127.0.0.1", 0, start_s=60.0, log_path=folder / "engine.log")
    target = EngineTarget(3, "d", BlobRef("k", "0" * 64, 1))
    engine = await host.start(Policy(target, directory, (), "float32", weights_digest="v3"))
    assert isinstance(engine, EngineClient)
    try:
        await engine.update_weight_version("3")
        yield host.base_url
    finally:
        await host.stop()


class Registry:
    """Lists these engines, all of version 3."""

    def __init__(self, *urls: str) -> None:
        self.urls = urls

    async def ListEngines(
        self, request: service_pb2.ListEnginesRequest, timeout: float
    ) -> service_pb2.ListEnginesResponse:
        leases = [
            registry_pb2.EngineLease(
                engine_id=f"e{number}",
                model=WANTED.model,
                channel=CHANNEL_LATEST,
                version=3,
                digest="d",
                state=registry_pb2.ENGINE_STATE_READY,
                base_url=url,
            )
            for number, url in enumerate(self.urls)
        ]
        return service_pb2.ListEnginesResponse(engines=leases)


@asynccontextmanager
async def engines_at(*urls: str) -> AsyncIterator[LeasedEngines]:
    async def digest_of(model: str, version: int) -> str:
        return "d"

    engines = LeasedEngines(LeaseCache(cast(Any, Registry(*urls))), digest_of, turn_timeout_s=30.0)
    try:
        yield engines
    finally:
        await engines.stop()


async def test_a_context_goes_on_at_the_engine_that_has_its_beginning(tmp_path: Path) -> None:
    async with (
        running_engine(tmp_path / "one", places=16) as one,
        running_engine(tmp_path / "two", places=16) as two,
        engines_at(one, two) as engines,
    ):
        before = await cached_tokens(one, two)
        num_asked = await converse(engines, stays=False)
        anywhere = await cached_tokens(one, two) - before
        assert await converse(engines, stays=True) == num_asked
        near = await cached_tokens(one, two) - before - anywhere
    # All but the first prompts and the five tokens that each later turn adds; an engine computes one again.
    assert near >= 0.6 * num_asked
    assert near > 1.2 * anywhere


async def converse(engines: LeasedEngines, *, stays: bool) -> int:
    """Five conversations of six turns, in turns; the tokens of all prompts."""
    contexts = [random.Random(f"{stays} {n}").choices(range(7, 40), k=40) for n in range(5)]
    sampling, near, num_asked = SamplingParams(max_tokens=2, ignore_eos=True), dict[int, str](), 0
    for _ in range(6):
        for number, context in enumerate(contexts):
            num_asked += len(context)
            where = near.get(number, "") if stays else ""
            done = await engines.sample(WANTED, context, sampling, Usage(), before=where)
            near[number] = done.engine_id
            context += [*done.token_ids, 7, 8, 9]
    return num_asked


async def cached_tokens(*urls: str) -> float:
    """Of prompts, that the engines did not compute again."""
    total = 0.0
    async with aiohttp.ClientSession() as session:
        for url in urls:
            async with session.get(f"{url}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            mine = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
            total += sum(float(line.rpartition(" ")[2]) for line in mine)
    return total
