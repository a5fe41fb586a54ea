"""A sampler between real NATS and S3 and small doubles of its peers."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import pytest
from google.protobuf.message import Message
from tests.conftest import NatsFactory
from tests.facts import with_decisions
from tests.services.rollout_sampler.doubles import (
    MODEL,
    EngineDouble,
    EnvironmentDouble,
    RegistryDouble,
    Script,
    write_policy,
)
from tests.services.settled import until_handled
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store.ref import from_wire
from chat_format import ChatFormat
from episodes import EpisodeIdentity, Purpose, Split, identity_to_wire
from event_bus import BusSettings, BusTimings, Delivery, EventBus
from event_bus.model_queues import provision_queues
from event_bus.provision import provision
from event_bus.topology import ROLLOUT_SAMPLER_TRAIN
from identities import entities, events
from policy_files import PolicyFacts, upload
from rollout_sampler.app import build_app
from rollout_sampler.settings import RolloutSamplerSettings
from service_kit.groups import PeerSettings, S3Settings
from service_kit.service import Service
from trajectory_body import unpack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody


class Part(Protocol):
    """Something to start and stop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


S = TypeVar("S", bound=Part)
FAST = BusTimings(connect_s=30, drain_s=1, pull_s=0.5, first_retry_s=0.05)


@dataclass
class Testbed:
    """The samplers of one test with everything that they talk to."""

    __test__ = False

    bus: EventBus
    blobs: S3BlobStore
    chat: ChatFormat
    environments: EnvironmentDouble
    registry: RegistryDouble
    settings: RolloutSamplerSettings
    run_id: str
    resources: AsyncExitStack
    events: list[Delivery[Any]] = field(default_factory=list)

    async def engine(self, script: Script, **changes: Any) -> EngineDouble:
        """Start an engine and lease it."""
        engine = EngineDouble(self.chat, script, **changes)
        await engine.start()
        self.resources.push_async_callback(engine.stop)
        self.registry.engines.append(engine)
        return engine

    async def sampler(self, **changes: Any) -> Service:
        """Start a sampler; it stops with the test at the latest."""
        service = build_app(self.settings.model_copy(update=changes))
        await service.start()
        self.resources.push_async_callback(service.stop)
        return service

    def request(self, number: int = 0, **changes: Any) -> EpisodeRequested:
        """A planned episode."""
        group_id = entities.group_id(self.run_id, number)
        sampling = taskset_pb2.SamplingConfig(
            temperature=1.0,
            top_p=1.0,
            max_turns=4,
            max_tokens_per_turn=200,
            max_tokens_per_episode=3000,
            seed=7,
        )
        sampling.MergeFrom(changes.pop("sampling", taskset_pb2.SamplingConfig()))
        identity = EpisodeIdentity(
            episode_id=f"{group_id}-e000-a0",
            run_id=self.run_id,
            group_id=group_id,
            member=0,
            group_size=1,
            model=MODEL,
            purpose=changes.pop("purpose", Purpose.TRAIN),
            split=Split.TRAIN,
            task_slug="checkout",
            task_digest="d" * 64,
            family="db",
        )
        message = EpisodeRequested(
            episode=identity_to_wire(identity),
            policy=changes.pop("policy", common_pb2.PolicySelector(model=MODEL)),
            sampling=sampling,
            **changes,
        )
        message.requested_at.FromDatetime(datetime.now(UTC))
        message.deadline.FromDatetime(datetime.now(UTC) + timedelta(seconds=60))
        return message

    async def ask(
        self, *requests: EpisodeRequested, pool: str = "train", dispatch: int = 1, model: str = MODEL
    ) -> None:
        """Send the commands of episodes as the planner does, for the `dispatch`-th time."""
        for request in requests:
            event_id = events.episode_requested(request.episode.episode_id, dispatch)
            await self.bus.command(request, pool=pool, model=model, event_id=event_id)

    async def outcomes(self, count: int, timeout_s: float = 60.0) -> list[Any]:
        """The first `count` facts that samplers published."""
        await until(lambda: len(self.events) >= count, timeout_s=timeout_s)
        return [delivery.message for delivery in self.events]

    async def all_outcomes(self, num_commands: int) -> list[Any]:
        """Every fact in the stream once the samplers have handled so many commands of the pool `train`."""
        queue = ROLLOUT_SAMPLER_TRAIN.of_model(MODEL)
        await until_handled(self.settings.bus.url, queue, at_least=num_commands)
        return await with_decisions(self.bus, [TrajectoryRecorded, EpisodeFailed])

    async def body(self, fact: TrajectoryRecorded) -> TrajectoryBody:
        """The stored body behind a fact, verified."""
        return unpack(await self.blobs.get(from_wire(fact.body)))


@pytest.fixture(scope="module")
def policy_dirs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Versions 3 and 4 of one policy."""
    return [write_policy(tmp_path_factory.mktemp(f"v{version}"), float(version)) for version in (3, 4)]


def _settings(
    nats_url: str, s3: S3Settings, environments: EnvironmentDouble, registry: RegistryDouble, folder: Path
) -> RolloutSamplerSettings:
    return RolloutSamplerSettings(
        http_port=0,
        train_slots=8,
        eval_slots=4,
        drain_s=5,
        episode_timeout_s=20,
        late_start_s=5,
        retry_s=5,
        turn_timeout_s=5,
        environment_retry_s=10,
        engine_lease_age_s=0.2,
        cache_dir=folder / "formats",
        bus=BusSettings(url=nats_url),
        s3=s3,
        peers=PeerSettings(environments=environments.address, registry=registry.address),
    )


@pytest.fixture
async def bed(
    nats_server: NatsFactory, s3_settings: S3Settings, policy_dirs: Sequence[Path], tmp_path: Path
) -> AsyncIterator[Testbed]:
    async with AsyncExitStack() as resources:
        server = nats_server()
        await provision(server.url)
        await provision_queues(server.url, [MODEL])
        blobs = await _started(resources, S3BlobStore(s3_settings))
        for version, folder in zip((3, 4), policy_dirs, strict=True):
            moment = datetime(2026, 1, version, tzinfo=UTC)
            await upload(blobs, folder, PolicyFacts(model=MODEL, version=version, created_at=moment))
        environments = await _started(resources, EnvironmentDouble())
        registry = await _started(resources, RegistryDouble())
        settings = _settings(server.url, s3_settings, environments, registry, tmp_path)
        bus = await _started(resources, EventBus(settings.bus, client_name="test", timings=FAST))
        bed = Testbed(
            bus=bus,
            blobs=blobs,
            chat=ChatFormat.load(policy_dirs[0]),
            environments=environments,
            registry=registry,
            settings=settings,
            run_id=f"run-{secrets.token_hex(6)}",
            resources=resources,
        )
        watching = asyncio.create_task(_watch(bed))
        resources.push_async_callback(_end, watching)
        yield bed


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _started(resources: AsyncExitStack, part: S) -> S:
    await part.start()
    resources.push_async_callback(part.stop)
    return part


async def _watch(bed: Testbed) -> None:
    kinds: list[type[Message]] = [TrajectoryRecorded, EpisodeFailed]
    replay = cast("AsyncGenerator[Delivery[Any], None]", bed.bus.replay(kinds, after_sequence=0))
    async with aclosing(replay) as deliveries:
        async for delivery in deliveries:
            bed.events.append(delivery)
