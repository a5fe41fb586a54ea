"""What a sampler keeps of engines is bounded by the engines that live: each restart gives one a new name and
address."""

import gc
import time
from typing import Any, cast

import pytest
from tests.libs.engine_client.engine_double import Answer, generated, scripted
from tests.support.keeping import num_kept

from engine_client import EngineClient, SamplingParams
from rollout_sampler.adapters import engines as engines_module
from rollout_sampler.adapters.engines import LeasedEngines
from rollout_sampler.adapters.leases import LeaseCache
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, Usage
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.errors import Unavailable

MODELS = 20
GENERATIONS = 5
GONE = 16
"""Engines without a lease that may be remembered."""


class RegistryStub:
    """Lists one engine of each model, of the generation that the test says."""

    def __init__(self, url: str, *, beside: str = "") -> None:
        """beside: address of a second engine of the first model."""
        self.url = url
        self.beside = beside
        self.generation = 0

    async def ListEngines(
        self, request: service_pb2.ListEnginesRequest, timeout: float
    ) -> service_pb2.ListEnginesResponse:
        leases = [
            registry_pb2.EngineLease(
                engine_id=f"e-{number}-{self.generation}",
                model=f"m{number}",
                channel=CHANNEL_LATEST,
                version=3,
                digest="d",
                state=registry_pb2.ENGINE_STATE_READY,
                base_url=f"{self.url}/{self.generation}/{number}",
            )
            for number in range(MODELS)
        ]
        if self.beside:
            second = registry_pb2.EngineLease()
            second.CopyFrom(leases[0])
            second.engine_id, second.base_url = "beside", self.beside
            leases.append(second)
        return service_pb2.ListEnginesResponse(engines=leases)


def sampler(registry: RegistryStub) -> LeasedEngines:
    async def digest_of(model: str, version: int) -> str:
        return "d"

    leases = LeaseCache(cast(Any, registry), max_age_s=0.0)
    return LeasedEngines(leases, digest_of, turn_timeout_s=30.0)


async def sample_all(engines: LeasedEngines) -> None:
    for number in range(MODELS):
        await engines.sample(PolicyWanted(f"m{number}"), [1], SamplingParams(max_tokens=1), Usage())


def clients() -> set[int]:
    return {id(one) for one in gc.get_objects() if type(one) is EngineClient}


async def test_engines_of_other_models_keep_their_connections_and_those_that_went_lose_them() -> None:
    answers: dict[str, Answer] = {
        f"/{generation}/{number}/inference/v1/generate": lambda _: generated([5], [("3", 0, 1)])
        for generation in range(GENERATIONS)
        for number in range(MODELS)
    }
    before = clients()
    async with scripted(answers) as (url, _):
        registry = RegistryStub(url)
        engines = sampler(registry)
        await sample_all(engines)
        first = clients() - before
        assert len(first) == MODELS, "the models take turns, and each has its engine"
        for registry.generation in range(1, GENERATIONS):
            await sample_all(engines)
        gc.collect()
        assert len(clients() - before) <= MODELS + GONE
        assert num_kept(engines) <= 2 * (MODELS + GONE)
        await engines.stop()


async def test_engines_that_failed_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_module, "_SUSPECT_S", 0.0)
    registry = RegistryStub("http://127.0.0.1:1")
    engines = sampler(registry)
    for registry.generation in range(100):
        with pytest.raises(Unavailable):
            await engines.sample(PolicyWanted("m0"), [1], SamplingParams(max_tokens=1), Usage())
    assert num_kept(engines) <= 3 * (MODELS + GONE) + 2
    await engines.stop()


async def test_an_engine_that_never_answers_costs_ever_fewer_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lease lives on, as that of an engine does whose certificate this sampler does not trust."""
    monkeypatch.setattr(engines_module, "_SUSPECT_S", 0.02)
    answering = scripted({"/0/0/inference/v1/generate": lambda _: generated([5], [("3", 0, 1)])})
    async with answering as (url, _):
        registry = RegistryStub(url, beside="https://127.0.0.1:1")
        engines = sampler(registry)
        num_failed, until_s = 0, time.monotonic() + 1.5
        while time.monotonic() < until_s:
            try:
                await engines.sample(PolicyWanted("m0"), [1], SamplingParams(max_tokens=1), Usage())
            except Unavailable:
                num_failed += 1
        await engines.stop()
    assert 1 <= num_failed <= 8  # after 0.02, 0.06, 0.14, ... s


def test_requests_that_fail_together_are_one_failure_and_an_answer_ends_the_suspicion() -> None:
    suspicions = engines_module.Suspicions()
    for _ in range(100):
        suspicions.add("e", 10.0)
    assert [suspicions.has("e", at_s) for at_s in (11.9, 12.0)] == [True, False]
    suspicions.add("e", 12.0)
    assert [suspicions.has("e", at_s) for at_s in (15.9, 16.0)] == [True, False]
    suspicions.clear("e")
    suspicions.add("e", 16.0)
    assert [suspicions.has("e", at_s) for at_s in (17.9, 18.0)] == [True, False]
