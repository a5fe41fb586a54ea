"""The supervisor as a process would run it: real NATS, S3, registry and engine process."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import nats
import pytest
from tests.facts import newest
from tests.services.policy_engine.conftest import Platform, pid_listening_on
from tests.services.policy_engine.reference import reference_logprobs
from tests.support.waiting import until

from blob_store import ref as blob_ref
from engine_client import EngineClient, SamplingParams, TokenSpan
from identities.events import run_finished, run_submitted
from identities.objects import policy_manifest
from identities.subjects import fact
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunSubmitted
from upcycle.api.training.v1.events_pb2 import PolicyPublished

VLLM_PYTHON = Path(__file__).resolve().parents[3] / ".venv-vllm" / "bin" / "python"


async def test_the_engine_follows_what_the_trainer_publishes_and_proves_it(platform: Platform) -> None:
    async with platform.supervisor():
        assert await platform.lease() is None, "an unknown model must be waited for, not served"
        await platform.import_base()
        first = await platform.serving(0)
        ready = await platform.published_fact(events_pb2.EngineReady)
        assert (ready.version, ready.digest) == (0, first.digest)

        manifest = await platform.publish(3)
        lease = await platform.serving(3)
        assert lease.digest == manifest.digest
        assert 0 < lease.canary_max_abs_diff < 1e-3
        reloaded = await platform.published_fact(events_pb2.EngineReloaded)
        assert (reloaded.from_version, reloaded.version) == (0, 3)
        assert reloaded.reloaded_at.ToDatetime() >= reloaded.announced_at.ToDatetime()

        async with EngineClient(lease.base_url) as client:
            prompt = list(range(5, 25))
            sampling = SamplingParams(max_tokens=12, temperature=0.8)
            made = await client.generate(platform.model, prompt, sampling)
        assert made.version_spans == (TokenSpan(3, 0, len(made.token_ids)),)
        whole = reference_logprobs(platform.policy_dir(3), [*prompt, *made.token_ids], 0.8)
        expected = whole[len(prompt) - 1 :]
        assert made.logprobs == pytest.approx(expected, abs=1e-4)
    left = await platform.lease()
    assert left is None or left.state == registry_pb2.ENGINE_STATE_STOPPING, "no caller may be sent to it now"


async def test_an_engine_that_starts_when_the_stream_has_forgotten_the_last_publication_loads_latest(
    platform: Platform, nats_url: str
) -> None:
    await platform.import_base()
    manifest = await platform.publish(3)

    async def recorded() -> bool:
        found = await platform.registry.GetModel(pb.GetModelRequest(model=platform.model))
        return bool(found.model.latest.version == 3)

    await until(recorded, "v3 to be recorded by the registry")
    client = await nats.connect(nats_url)
    await client.jetstream().purge_stream("EVENTS", subject=fact("policy.published", platform.model))
    assert await newest(platform.bus, PolicyPublished, model=platform.model) is None
    await client.close()
    async with platform.supervisor():
        assert (await platform.serving(3)).digest == manifest.digest


async def test_a_version_whose_canary_disagrees_leaves_the_old_one_serving(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor():
        first = await platform.serving(0)
        bad = await platform.publish(1, canary_of=9)
        failed = await platform.published_fact(events_pb2.EngineReloadFailed)
        assert (failed.kind, failed.serving_version, failed.refused_version) == ("canary_mismatch", 0, 1)
        lease = await platform.serving(0, refusing=True)
        assert lease.digest == first.digest != bad.digest
        ids = list(range(10, 40))
        async with EngineClient(lease.base_url) as client:
            assert await client.weight_version() == "0"
            served = await client.prompt_logprobs(platform.model, ids)
        assert served == pytest.approx(reference_logprobs(platform.policy_dir(0), ids), abs=1e-4)

        await platform.publish(2)
        assert (await platform.serving(2)).version == 2


async def test_a_false_fact_of_a_version_that_is_nowhere_stops_no_engine(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor():
        await platform.serving(0)
        false = PolicyPublished(model=platform.model, version=1_000_000, digest="f" * 64)
        false.manifest.key, false.manifest.sha256 = policy_manifest(platform.model, 1_000_000), "a" * 64
        await platform.bus.publish(false, model=platform.model, event_id=f"false/{platform.model}")
        refused = await platform.published_fact(events_pb2.EngineReloadFailed)
        assert refused.refused_version == 1_000_000
        await platform.publish(1)
        await platform.serving(1)


async def test_corrupt_bytes_in_the_store_are_never_served(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor():
        await platform.serving(0)
        manifest = await platform.publish(1, announce=False)
        weights = next(file for file in manifest.files if file.name == "model.safetensors")
        good = await platform.store.get(blob_ref.from_wire(weights.blob))
        await platform.store.put(weights.blob.key, good[:-4] + b"\0\0\0\1")
        await platform.announce(manifest)
        failed = await platform.published_fact(events_pb2.EngineReloadFailed)
        assert (failed.kind, failed.serving_version) == ("digest_mismatch", 0)
        assert (await platform.serving(0, refusing=True)).version == 0

        await platform.store.put(weights.blob.key, good)
        assert (await platform.serving(1)).digest == manifest.digest


async def test_a_killed_engine_comes_back_on_the_version_it_served(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor():
        await platform.serving(0)
        await platform.publish(4)
        lease = await platform.serving(4)
        port = int(lease.base_url.rsplit(":", 1)[1])
        os.kill(pid_listening_on(port), signal.SIGKILL)

        async def gone() -> bool:
            found = await platform.lease()
            return found is None or found.state != registry_pb2.ENGINE_STATE_READY

        await until(gone, "the lease to say that the engine is gone")
        again = await platform.serving(4)
        assert again.digest == lease.digest
        assert again.engine_id == lease.engine_id


async def test_an_evaluation_run_finds_its_pinned_version_beside_the_latest(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor():
        await platform.publish(5)
        await platform.serving(5)
        policy = common_pb2.PolicySelector(model=platform.model, pinned_version=5)
        spec = taskset_pb2.RunSpec(purpose=common_pb2.PURPOSE_EVAL, policy=policy)
        submitted = RunSubmitted(run_id="run-pin", spec=spec)
        await platform.bus.publish(submitted, model=platform.model, event_id=run_submitted(platform.model))

        async def held() -> registry_pb2.EngineLease | None:
            lease = await platform.lease()
            return lease if lease is not None and 5 in lease.held_versions else None

        lease = await until(held, "v5 to be held")
        await platform.publish(6)
        await platform.serving(6)
        async with EngineClient(lease.base_url) as client:
            sampling = SamplingParams(max_tokens=8)
            pinned = await client.generate(f"{platform.model}@v5", [5, 6, 7, 8], sampling)
            newest = await client.generate(platform.model, [5, 6, 7, 8], sampling)
        assert {span.version for span in pinned.version_spans} == {5}
        assert {span.version for span in newest.version_spans} == {6}
        expected = reference_logprobs(platform.policy_dir(5), [5, 6, 7, 8, *pinned.token_ids])[3:]
        assert pinned.logprobs == pytest.approx(expected, abs=1e-4)
        finished = RunFinished(run_id="run-pin", model=platform.model)
        await platform.bus.publish(finished, model=platform.model, event_id=run_finished(platform.model))


async def test_an_engine_does_not_outlive_a_supervisor_that_is_killed(platform: Platform) -> None:
    await platform.import_base()
    peers, bus, s3 = (platform.settings[name] for name in ("peers", "bus", "s3"))
    env = {
        **os.environ,
        "POLICY_ENGINE_MODEL": platform.model,
        "POLICY_ENGINE_CACHE_DIR": str(platform.folder / "cache"),
        "UPCYCLE_PEERS_REGISTRY": peers.registry,
        "UPCYCLE_BUS_URL": bus.url,
        "UPCYCLE_S3_ENDPOINT": s3.endpoint,
        "UPCYCLE_S3_BUCKET": s3.bucket,
        "UPCYCLE_S3_ACCESS_KEY": s3.access_key.get_secret_value(),
        "UPCYCLE_S3_SECRET_KEY": s3.secret_key.get_secret_value(),
    }
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-m", "policy_engine.app", env=env)
    try:
        lease = await platform.serving(0, 60.0)
        async with EngineClient(lease.base_url) as client:
            assert await client.health()
            supervisor.kill()
            await supervisor.wait()

            async def gone() -> bool:
                return not await client.health()

            await until(gone, "the engine to end", timeout_s=60)
    finally:
        if supervisor.returncode is None:
            supervisor.kill()
            await supervisor.wait()


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_the_same_supervisor_runs_vllm(platform: Platform) -> None:
    await platform.import_base()
    async with platform.supervisor(kind="vllm", vllm_python=VLLM_PYTHON, max_num_seqs=16):
        await platform.serving(0, 300.0)
        await platform.publish(3)
        lease = await platform.serving(3, 60.0)
        assert 0 < lease.canary_max_abs_diff < 1e-3
        await platform.publish(4, canary_of=9)
        failed = await platform.published_fact(events_pb2.EngineReloadFailed, 60.0)
        assert (failed.kind, failed.serving_version) == ("canary_mismatch", 3)
        lease = await platform.serving(3, 60.0)
        prompt = list(range(5, 25))
        async with EngineClient(lease.base_url) as client:
            made = await client.generate(platform.model, prompt, SamplingParams(max_tokens=12))
        assert made.version_spans == (TokenSpan(3, 0, len(made.token_ids)),)
        whole = reference_logprobs(platform.policy_dir(3), [*prompt, *made.token_ids])
        assert made.logprobs == pytest.approx(whole[len(prompt) - 1 :], abs=1e-3)
