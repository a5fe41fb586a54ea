"""Adapters and a schedule on real processes: what is published is a policy like any other, and engines prove
it; each step has its own rate."""

import asyncio

import pytest
from tests.e2e.test_loop import assert_conserved, balanced, finished
from tests.platform_recipes import MODEL, small_training

from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST
from upcycle.api.registry.v1.registry_pb2 import ENGINE_STATE_READY, EngineLease
from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.platform import Platform

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]


async def engine_of_latest(platform: Platform, version: int) -> EngineLease:
    """The engine that samples, once it serves that version."""
    request = ListEnginesRequest(model=MODEL, channel=CHANNEL_LATEST)
    async with asyncio.timeout(60):
        while True:
            for engine in (await platform.registry.ListEngines(request, timeout=10)).engines:
                if engine.version >= version and engine.state == ENGINE_STATE_READY:
                    return engine
            await asyncio.sleep(0.2)


async def test_engines_load_and_prove_a_base_with_its_adapter_added_in(platform: Platform) -> None:
    spec = small_training(steps=2)
    spec.training.lora_rank = 4
    spec.training.lr_schedule = "linear"
    run = await finished(platform, spec)
    assert run.state == RUN_STATE_COMPLETED, run.failure
    assert_conserved(await balanced(platform, run.run_id, trained=2 * 2))
    request = GetSessionRequest(run_id=run.run_id, num_steps=2)
    steps = (await platform.training.GetSession(request, timeout=10)).steps
    full = spec.training.learning_rate
    assert [step.metrics.values["learning_rate"] for step in steps] == pytest.approx([full, full / 2])
    engine = await engine_of_latest(platform, run.policy_version)
    assert engine.canary_max_abs_diff < 1e-4
