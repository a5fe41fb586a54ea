"""The serving half of the loop for real: registry, supervisor, embedded engine, gateway, openai client."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import openai
import pytest
from tests.services.model_gateway.conftest import KEY
from tests.services.policy_engine.policies import make_policy
from tests.services.policy_engine.reference import canary_rows, reference_logprobs
from tests.support.waiting import until

from blob_store import BlobRef, S3BlobStore
from checkpoint_registry.app import build_app as build_registry
from checkpoint_registry.settings import CheckpointRegistrySettings
from episodes import Channel
from event_bus import EventBus
from grpo_trainer.domain.token_rows import episode_tokens
from identities import objects
from identities.entities import checkpoint_id, recorded_episode_id, recorded_run_id
from model_gateway.app import build_app as build_gateway
from model_gateway.public_http import PublicHttp
from model_gateway.settings import ModelGatewaySettings
from policy_engine.app import build_app as build_supervisor
from policy_engine.settings import PolicyEngineSettings
from policy_files import PolicyFacts, manifest_from_bytes, manifest_ref, upload
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.ports import free_ports
from trajectory_body import unpack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.training.v1.events_pb2 import CheckpointSaved
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest
from upcycle.rpc import connect

if TYPE_CHECKING:
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

MODEL = "served"
ASK: Any = [{"role": "user", "content": "why?"}]


@dataclass
class Serving:
    """A running platform without its training half."""

    registry: "RegistryServiceAsyncStub"
    store: S3BlobStore
    bus: EventBus
    folder: Path
    url: str
    registry_address: str

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=60)

    async def import_base(self) -> PolicyManifest:
        async def parts() -> AsyncIterator[pb.ImportModelRequest]:
            yield pb.ImportModelRequest(header=pb.ImportHeader(model=MODEL))
            for path in sorted(make_policy(self.folder / "v0", seed=0).iterdir()):
                chunk = pb.FileChunk(name=path.name, data=path.read_bytes())
                yield pb.ImportModelRequest(chunk=chunk)

        manifest = (await self.registry.ImportModel(parts())).base.manifest
        ref = BlobRef(manifest.key, manifest.sha256, manifest.size_bytes)
        return manifest_from_bytes(await self.store.get(ref))

    async def save(self, version: int, parent: PolicyManifest) -> PolicyManifest:
        """What the trainer does: publish, then announce a checkpoint."""
        directory = make_policy(self.folder / f"v{version}", seed=version)
        rows = tuple(CanaryRow(token_ids=ids, logprobs=lps) for ids, lps in canary_rows(directory))
        facts = PolicyFacts(MODEL, version, datetime.now(UTC), parent=parent, canary=rows)
        manifest = await upload(self.store, directory, facts)
        ref = manifest_ref(manifest)
        event = CheckpointSaved(
            checkpoint_id=checkpoint_id(MODEL, version),
            model=MODEL,
            version=version,
            digest=manifest.digest,
            manifest=common_pb2.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes),
            run_id="run-x",
        )
        event.saved_at.GetCurrentTime()
        await self.bus.publish(event, model=MODEL, event_id=f"saved/{version}/{self.url}")
        return manifest

    async def promote(self, version: int) -> None:
        request = pb.SetHeadRequest(
            model=MODEL, checkpoint_id=checkpoint_id(MODEL, version), actor="test", reason="test"
        )
        for _ in range(600):
            listed = await self.registry.ListCheckpoints(pb.ListCheckpointsRequest(model=MODEL))
            if any(checkpoint.version == version for checkpoint in listed.checkpoints):
                await self.registry.SetHead(request)
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"v{version} was not recorded within 30 s")


def supervised(s3: S3Settings, cache_dir: Path, shared: dict[str, Any]) -> PolicyEngineSettings:
    return PolicyEngineSettings(
        model=MODEL,
        channel=Channel.HEAD,
        cache_dir=cache_dir,
        lease_renew_s=0.3,
        lease_ttl_s=30.0,
        s3=s3,
        **shared,
    )


@pytest.fixture
async def serving(own_nats_url: str, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Serving]:
    """On a bus of its own: ids of facts about head name the model, and another test's registry has promoted
    versions of that name as well. The session's bus would drop the second ones as repeats.
    """
    port, nowhere = free_ports(2)
    shared: dict[str, Any] = {
        "bus": BusSettings(url=own_nats_url),
        "peers": PeerSettings(registry=f"127.0.0.1:{port}", tasksets=f"127.0.0.1:{nowhere}"),
    }
    sql = SqlSettings(data_dir=tmp_path / "sql")
    registry = build_registry(CheckpointRegistrySettings(grpc_port=port, sql=sql, s3=s3_settings, **shared))
    gateway = build_gateway(
        ModelGatewaySettings(
            public_port=0, bootstrap_key=KEY, sql=sql, s3=s3_settings, session_idle_s=2.0, **shared
        )
    )
    supervisor = build_supervisor(supervised(s3_settings, tmp_path / "cache", shared))
    store, bus = S3BlobStore(s3_settings), EventBus(shared["bus"], client_name="test")
    services = (registry, gateway, supervisor)
    channel = connect(f"127.0.0.1:{port}")
    try:
        for service in services:
            await service.start()
        await bus.start()
        public = next(part for part in gateway._components if isinstance(part, PublicHttp))
        url = f"http://127.0.0.1:{public.port}"
        yield Serving(RegistryServiceStub(channel), store, bus, tmp_path, url, f"127.0.0.1:{port}")
    finally:
        await channel.close()
        await bus.stop()
        for service in reversed(services):
            await service.stop()


async def user(
    client: openai.AsyncOpenAI, seen: Counter[tuple[str, str]], stop: asyncio.Event, *, stream: bool
) -> None:
    """Asks again and again; any failure fails the test."""
    while not stop.is_set():
        raw: Any = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=ASK, stream=stream, max_tokens=16, temperature=1.0
        )
        if stream:
            assert [chunk async for chunk in raw.parse()]
        else:
            assert raw.parse().usage.completion_tokens > 0
        seen[raw.headers["x-upcycle-version"], raw.headers["x-upcycle-digest"]] += 1


@pytest.mark.slow
async def test_promotions_under_load_fail_no_request_and_each_is_served(serving: Serving) -> None:
    manifests = [await serving.import_base()]
    seen: Counter[tuple[str, str]] = Counter()
    stop = asyncio.Event()
    async with serving.client() as client:
        # The first request waits for the engine to be there at all.
        await client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)

        async def answered(version: int) -> None:
            asked = f"an answer of v{version}"
            await until(lambda: any(one == str(version) for one, _ in seen), asked, timeout_s=60)

        users = [asyncio.create_task(user(client, seen, stop, stream=index % 2 == 0)) for index in range(8)]
        for version in (1, 2, 3):
            manifests.append(await serving.save(version, manifests[-1]))
            await serving.promote(version)
            await answered(version)
        stop.set()
        await asyncio.gather(*users)
        reply = await client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=4, logprobs=True, extra_body={"return_token_ids": True}
        )
        body = reply.model_dump()
        assert body["choices"][0]["prompt_token_ids"] == body["prompt_token_ids"]
        assert len(body["choices"][0]["token_ids"]) == len(body["choices"][0]["logprobs"]["content"])
    expected = {(str(version), manifest.digest) for version, manifest in enumerate(manifests)}
    assert seen.keys() <= expected
    assert ("3", manifests[3].digest) in seen
    await shows_promotions(serving, [1, 2, 3])


async def shows_promotions(serving: Serving, versions: list[int]) -> None:
    """The gateway's page of what is served: each promotion once, head and engine at the last."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as session:

        async def served() -> tuple[list[int], int, int]:
            said = await (await session.get(f"{serving.url}/upcycle/v1/serving")).json()
            (model,) = said["models"]
            promoted = [promotion["version"] for promotion in model["promotions"]]
            return promoted, model["head_version"], model["engines"][0]["version"]

        async def is_served() -> bool:
            return await served() == (versions, versions[-1], versions[-1])

        # The gateway reads the leases of engines every two seconds.
        await until(is_served, f"promotions {versions}, head and engine at the last", timeout_s=60)


@pytest.mark.slow
async def test_a_recorded_session_holds_what_was_sampled_and_how_likely(serving: Serving) -> None:
    manifest = await serving.import_base()
    headers = {"X-Session-ID": "with-engine"}
    async with serving.client() as client:
        said: list[Any] = [*ASK]
        for number in range(3):
            stream: Any = await client.chat.completions.create(
                model=MODEL,
                messages=said,
                max_tokens=12,
                temperature=0.8,
                seed=number,
                stream=True,
                extra_headers=headers,
            )
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
            said += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
    key = objects.trajectory_body(recorded_run_id("bootstrapkey1"), recorded_episode_id("with-engine"))
    data = await until(lambda: serving.store.read(key), "the session to be stored", timeout_s=30)
    body = unpack(data)
    tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    assert tokens.num_trained == sum(len(turn.sampled_ids) for turn in body.turns) > 0
    assert {span.weights_digest for turn in body.turns for span in turn.versions} == {manifest.digest}
    for row in tokens.rows:
        expected = reference_logprobs(serving.folder / "v0", row.token_ids, temperature=0.8)
        trained = [at for at, is_trained in enumerate(row.trained) if is_trained]
        assert [row.logprobs[at] for at in trained] == pytest.approx(
            [expected[at - 1] for at in trained], abs=2e-3
        )
