"""A platform for engine supervisors: real NATS, S3, registry and engine processes."""

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message
from tests.services.policy_engine.policies import Shape, make_policy
from tests.services.policy_engine.reference import canary_rows
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store import ref as blob_ref
from checkpoint_registry.app import build_app as build_registry
from checkpoint_registry.settings import CheckpointRegistrySettings
from episodes import Channel
from event_bus import EventBus, EventRouter
from identities.events import policy_published
from policy_engine.app import build_app
from policy_engine.settings import PolicyEngineSettings
from policy_files import PolicyFacts, manifest_from_bytes, manifest_ref, upload
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.ports import free_ports
from service_kit.service import Service
from upcycle.api.registry.v1 import events_pb2, registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.api.training.v1.training_pb2 import CanaryRow, PolicyManifest
from upcycle.rpc import connect

if TYPE_CHECKING:
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

Waiter = Callable[[], Awaitable[Any]]
# Sizes that vLLM's CPU build supports too.
SHAPE = Shape(layers=2, hidden=128, inner=192, heads=4, kv_heads=2, head_dim=32, scale=0.1)


@dataclass
class Platform:
    """Bus, store and registry, and short words for what tests do with them."""

    model: str
    bus: EventBus
    store: S3BlobStore
    registry: "RegistryServiceAsyncStub"
    settings: dict[str, Any]
    folder: Path
    facts: list[Message] = field(default_factory=list)
    newest: PolicyManifest | None = None

    def policy_dir(self, version: int) -> Path:
        return make_policy(self.folder / f"v{version}", seed=100 + version, shape=SHAPE)

    async def import_base(self) -> None:
        async def parts() -> AsyncIterator[pb.ImportModelRequest]:
            yield pb.ImportModelRequest(header=pb.ImportHeader(model=self.model))
            for path in sorted(self.policy_dir(0).iterdir()):
                chunk = pb.FileChunk(name=path.name, data=path.read_bytes())
                yield pb.ImportModelRequest(chunk=chunk)

        reply = await self.registry.ImportModel(parts())
        assert reply.created
        base = await self.store.get(blob_ref.from_wire(reply.base.manifest))
        self.newest = manifest_from_bytes(base)

    async def publish(
        self, version: int, *, canary_of: int | None = None, announce: bool = True
    ) -> PolicyManifest:
        directory = self.policy_dir(version)
        scored = self.policy_dir(version if canary_of is None else canary_of)
        rows = tuple(CanaryRow(token_ids=ids, logprobs=lps) for ids, lps in canary_rows(scored))
        facts = PolicyFacts(
            self.model,
            version,
            datetime.now(UTC),
            parent=self.newest,
            run_id="run-x",
            step=version,
            canary=rows,
        )
        manifest = await upload(self.store, directory, facts)
        self.newest = manifest
        if announce:
            await self.announce(manifest)
        return manifest

    async def announce(self, manifest: PolicyManifest) -> None:
        ref = manifest_ref(manifest)
        event = PolicyPublished(
            model=self.model, version=manifest.version, digest=manifest.digest, manifest=blob_ref.to_wire(ref)
        )
        event.published_at.GetCurrentTime()
        event_id = policy_published(self.model, manifest.version)
        await self.bus.publish(event, model=self.model, event_id=event_id)

    async def lease(self) -> registry_pb2.EngineLease | None:
        reply = await self.registry.ListEngines(pb.ListEnginesRequest(model=self.model))
        return reply.engines[0] if reply.engines else None

    async def serving(
        self, version: int, seconds: float = 60.0, *, refusing: bool = False
    ) -> registry_pb2.EngineLease:
        """The lease of the engine once it serves the version; refusing: while another one is refused."""
        wanted = registry_pb2.ENGINE_STATE_FAILED if refusing else registry_pb2.ENGINE_STATE_READY

        async def check() -> registry_pb2.EngineLease | None:
            lease = await self.lease()
            return lease if lease is not None and (lease.state, lease.version) == (wanted, version) else None

        found: registry_pb2.EngineLease = await until(check, f"v{version} to be served", timeout_s=seconds)
        return found

    async def published_fact(self, kind: type[Message], seconds: float = 60.0) -> Any:
        async def check() -> Message | None:
            return next((fact for fact in self.facts if isinstance(fact, kind)), None)

        return await until(check, kind.__name__, timeout_s=seconds)

    @contextlib.asynccontextmanager
    async def supervisor(self, channel: Channel = Channel.LATEST, **changes: Any) -> AsyncIterator[Service]:
        settings = PolicyEngineSettings(
            model=self.model,
            channel=channel,
            cache_dir=self.folder / "cache",
            poll_s=0.5,
            lease_renew_s=0.3,
            lease_ttl_s=30.0,
            drain_s=15.0,
            **{**self.settings, **changes},
        )
        service = build_app(settings)
        await service.start()
        try:
            yield service
        finally:
            assert await service.stop()


@pytest.fixture
async def platform(
    nats_url: str, s3_settings: S3Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Platform]:
    bus_settings, port = BusSettings(url=nats_url), free_ports(1)[0]
    peers = PeerSettings(registry=f"127.0.0.1:{port}")
    shared: dict[str, Any] = {"bus": bus_settings, "s3": s3_settings, "peers": peers}
    registry = build_registry(
        CheckpointRegistrySettings(grpc_port=port, sql=SqlSettings(data_dir=tmp_path / "sql"), **shared)
    )
    bus, store = EventBus(bus_settings, client_name="test"), S3BlobStore(s3_settings)
    model = f"m-{abs(hash(request.node.nodeid)) % 10**8}"
    facts: list[Message] = []

    async def remember(event: Message, _: Any) -> None:
        facts.append(event)

    kinds = (events_pb2.EngineReady, events_pb2.EngineReloaded, events_pb2.EngineReloadFailed)
    router = EventRouter()
    handlers = router.ephemeral(model=model)
    for kind in kinds:
        handlers(kind)(remember)
    bus.include_router(router)
    await registry.start()
    await bus.start()
    channel = connect(f"127.0.0.1:{port}")
    try:
        yield Platform(model, bus, store, RegistryServiceStub(channel), shared, tmp_path, facts)
    finally:
        await channel.close()
        await bus.stop()
        assert await registry.stop()


def pid_listening_on(port: int) -> int:
    """The process whose socket it is."""
    wanted = f"{port:04X}"
    inodes = {
        line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{wanted}") and line.split()[3] == "0A"
    }  # fmt: skip
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in (folder / "fd").iterdir():
                if os.readlink(link)[8:-1] in inodes:
                    return int(folder.name)
    raise AssertionError(f"no process listens on {port}")
