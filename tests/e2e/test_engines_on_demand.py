"""A platform that was started without a model serves every one that is asked for."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from benchmarks.echo import taskset
from tests.platform_recipes import POLICY_DIR, addresses
from tests.support.waiting import until

from local_stack.engines_on_demand import OnDemandLimits
from local_stack.importing import import_policy
from local_stack.stack import Stack, StackSettings
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_EVAL, PolicySelector
from upcycle.api.taskset.v1.service_pb2 import RegisterTasksetRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, RunSpec, SamplingConfig
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run
from upcycle.wire import taskset_to_wire

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_engines_start_when_they_are_asked_for_and_stop_when_they_are_not(tmp_path: Path) -> None:
    settings = StackSettings(
        data_dir=tmp_path / "stack",
        ephemeral_ports=True,
        environment_roots=(REPOSITORY,),
        on_demand=OnDemandLimits(idle_s=2.0),
    )
    async with Stack(settings) as stack:
        for model in ("played", "Chat/Asked"):
            await import_policy(
                stack.peers["registry"], model, POLICY_DIR, key=addresses(stack).platform_key(), timeout_s=120
            )
        assert engines(stack) == []
        async with Platform(addresses(stack)) as platform:
            played, answered = await asyncio.gather(play(platform, "played"), ask(stack, "Chat/Asked"))
        assert played == RUN_STATE_COMPLETED
        assert answered == (200, "Chat/Asked")
        await stack.wait_ready("nats")  # the others go on

        async def gone() -> bool:
            return engines(stack) == []

        await until(gone, "idle engines to stop", timeout_s=120)


def engines(stack: Stack) -> list[str]:
    return [process.name for process in stack.processes if process.name.startswith("policy_engine")]


async def play(platform: Platform, model: str) -> int:
    tasks = taskset(2)
    await platform.tasksets.RegisterTaskset(
        RegisterTasksetRequest(taskset=taskset_to_wire(tasks)), timeout=60
    )
    spec = RunSpec(
        taskset=tasks.name,
        purpose=PURPOSE_EVAL,
        policy=PolicySelector(model=model, channel=CHANNEL_LATEST),
        group_size=1,
        sampling=SamplingConfig(temperature=1.0, max_turns=1, max_tokens_per_turn=4),
    )
    run = await submit_run(platform, spec)
    return (await follow_run(platform, run.run_id, timeout_s=300)).state


async def ask(stack: Stack, model: str) -> tuple[int, str]:
    """Status and model of the gateway's answer; the request waits for the engine."""
    headers = {"Authorization": f"Bearer {stack.gateway_key_file.read_text().strip()}"}
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(300)) as session:
        answer = await session.post(f"http://{stack.peers['gateway']}/v1/chat/completions", json=body)
        said = await answer.json()
        return answer.status, said.get("model", said)
