"""A sampler that has more requests than an engine has places."""

import asyncio
from typing import Any, cast

import pytest
from tests.contract.engines.conftest import MODEL, EngineUnderTest

from engine_client import SamplingParams
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, Usage
from upcycle.api.registry.v1 import registry_pb2, service_pb2

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLIENTS = 320
PLACES = 64


class OneLease:
    """A registry that lists the engine under test."""

    def __init__(self, engine: EngineUnderTest) -> None:
        self._engine = engine

    async def ListEngines(self, request: object, timeout: float) -> service_pb2.ListEnginesResponse:
        lease = registry_pb2.EngineLease(
            engine_id="e",
            model=MODEL,
            channel=CHANNEL_LATEST,
            digest="d",
            state=registry_pb2.ENGINE_STATE_READY,
            base_url=self._engine.url,
        )
        return service_pb2.ListEnginesResponse(engines=[lease])


async def test_requests_wait_in_the_sampler_and_not_in_the_engine(engine: EngineUnderTest) -> None:
    async def digest_of(model: str, version: int) -> str:
        return "d"

    leases = LeaseCache(cast(Any, OneLease(engine)))
    engines = LeasedEngines(leases, digest_of, turn_timeout_s=120.0, look_s=0.05)
    queues: list[int] = []
    stop = asyncio.Event()

    async def client(number: int) -> None:
        sampling = SamplingParams(max_tokens=48, temperature=1.0, ignore_eos=True)
        while not stop.is_set():
            await engines.sample(PolicyWanted(MODEL), [1, 30 + number % 200, 40], sampling, Usage())

    async def look() -> None:
        """Until the queue was short for a while; an engine of another sampler's size would end here, too."""
        while len(queues) < 20 or max(queues[-10:]) > PLACES // 2:
            queues.append((await engine.client.load()).num_waiting)
            await asyncio.sleep(0.1)
        stop.set()

    try:
        async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(client(number))
            tasks.create_task(look())
        assert max(queues) > PLACES // 2, "the queue was long before the sampler had looked"
    finally:
        stop.set()
        await engines.stop()
