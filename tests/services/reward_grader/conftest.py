"""Graders between real NATS and S3 and a double for the environments."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from tests.conftest import NatsFactory
from tests.facts import with_decisions
from tests.services.rollout_sampler.doubles import MODEL, EnvironmentDouble
from tests.services.settled import until_handled
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store.ref import to_wire
from episodes import EpisodeIdentity, Purpose, Split, identity_to_wire
from event_bus import BusSettings, BusTimings, Delivery, EventBus
from event_bus.provision import provision
from event_bus.topology import REWARD_GRADER
from identities import entities, events, objects
from reward_grader.app import build_app
from reward_grader.settings import RewardGraderSettings
from service_kit.groups import S3Settings
from service_kit.service import Service
from trajectory_body import pack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded


@dataclass
class Testbed:
    """The graders of one test with everything that they talk to."""

    __test__ = False

    bus: EventBus
    blobs: S3BlobStore
    environments: EnvironmentDouble
    settings: RewardGraderSettings
    run_id: str
    resources: AsyncExitStack
    events: list[Delivery[Any]] = field(default_factory=list)

    async def grader(self, **changes: Any) -> Service:
        service = build_app(self.settings.model_copy(update=changes))
        await service.start()
        self.resources.push_async_callback(service.stop)
        return service

    async def record(self, number: int = 0, *, body: bytes | None = None) -> TrajectoryRecorded:
        """A stored body whose environment still lives, as the sampler leaves it."""
        episode = identity_of(self.run_id, number)
        lease_id = f"lease-{number}"
        self.environments.open_leases[lease_id] = episode.episode_id
        key = objects.trajectory_body(self.run_id, episode.episode_id)
        ref = await self.blobs.put(key, pack(body_of(episode)) if body is None else body)
        event = TrajectoryRecorded(
            episode=episode,
            body=to_wire(ref),
            sampled_by=common_pb2.VersionSpan(oldest=3, newest=4),
            stop_reason=trajectory_pb2.STOP_REASON_ANSWERED,
            num_turns=2,
            num_sampled_tokens=9,
            lease_id=lease_id,
            environment_address=self.environments.address,
        )
        return event

    async def publish(self, event: TrajectoryRecorded, again: str = "") -> None:
        event_id = f"{events.trajectory_recorded(event.episode.trajectory_id)}{again}"
        await self.bus.publish(event, model=MODEL, event_id=event_id)

    async def all_outcomes(self, num_records: int) -> list[Any]:
        """Every fact in the stream once the graders have handled so many records."""
        await until_handled(self.settings.bus.url, REWARD_GRADER, at_least=num_records)
        return await with_decisions(self.bus, [TrajectoryGraded, EpisodeFailed])

    async def outcomes(self, count: int) -> list[Any]:
        await until(lambda: len(self.events) >= count)
        return [delivery.message for delivery in self.events]


def identity_of(run_id: str, number: int) -> common_pb2.EpisodeIdentity:
    group_id = entities.group_id(run_id, number)
    identity = EpisodeIdentity(
        episode_id=f"{group_id}-e000-a0",
        run_id=run_id,
        group_id=group_id,
        member=0,
        group_size=4,
        model=MODEL,
        purpose=Purpose.TRAIN,
        split=Split.TRAIN,
        task_slug="checkout",
        task_digest="d" * 64,
        family="db",
    )
    return identity_to_wire(identity)


def body_of(episode: common_pb2.EpisodeIdentity) -> trajectory_pb2.TrajectoryBody:
    call = trajectory_pb2.ToolCall(call_id="c0", name="search_logs", arguments_json="{}")
    looked = trajectory_pb2.Turn(
        new_prompt_ids=[1, 2],
        sampled_ids=[3, 4],
        sampled_logprobs=[-0.5, -0.25],
        sampled_texts=["a", "b"],
        tool_calls=[call],
        tool_results=[trajectory_pb2.ToolResult(call_id="c0", content="oom")],
    )
    answered = trajectory_pb2.Turn(new_prompt_ids=[5], sampled_ids=[6], sampled_logprobs=[-1], text="OOM")
    return trajectory_pb2.TrajectoryBody(
        episode=episode,
        prompt=[trajectory_pb2.Message(role="user", content="why?")],
        turns=[looked, answered],
        answer="OOM",
    )


@pytest.fixture
async def bed(nats_server: NatsFactory, s3_settings: S3Settings) -> AsyncIterator[Testbed]:
    async with AsyncExitStack() as resources:
        server = nats_server()
        await provision(server.url)
        settings = RewardGraderSettings(
            grpc_port=0,
            http_port=0,
            slots=8,
            drain_s=5,
            gone_after_s=2.5,
            grade_timeout_s=5,
            bus=BusSettings(url=server.url),
            s3=s3_settings,
        )
        timings = BusTimings(connect_s=30, drain_s=1, close_s=1)
        blobs, environments = S3BlobStore(s3_settings), EnvironmentDouble()
        bus = EventBus(settings.bus, client_name="test", timings=timings)
        for part in (blobs, environments, bus):
            await part.start()
            resources.push_async_callback(part.stop)
        bed = Testbed(bus, blobs, environments, settings, f"run-{secrets.token_hex(6)}", resources)
        watching = asyncio.create_task(_watch(bed))
        resources.push_async_callback(_end, watching)
        yield bed


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _watch(bed: Testbed) -> None:
    kinds = [TrajectoryGraded, EpisodeFailed]
    replay = cast("AsyncGenerator[Delivery[Any], None]", bed.bus.replay(kinds, after_sequence=0))
    async with aclosing(replay) as deliveries:
        async for delivery in deliveries:
            bed.events.append(delivery)


def tree(value: float = 0.5, **changes: Any) -> trajectory_pb2.Subscore:
    leaf = trajectory_pb2.Subscore(name="class", weight=1.0, value=1.0, info="right class")
    return trajectory_pb2.Subscore(name="service", weight=0.5, value=value, children=[leaf], **changes)
