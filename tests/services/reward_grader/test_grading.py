"""Records graded through the real service: one valid reward each, or one typed failure."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import pytest
from tests.conftest import NatsFactory
from tests.services.rollout_sampler.stand_ins import MODEL, Fleet

from blob_store import S3BlobStore
from event_bus import BusSettings, BusTimings, Delivery, EventBus
from event_bus.provision import provision
from local_stack.ports import free_ports
from reward_grader.adapters.rubric import RubricInvalid, load_grader
from reward_grader.app import build_app
from reward_grader.domain import Transcript
from reward_grader.settings import ExtraGraderSettings, GraderSettings
from reward_grader.usecases import GradeTrajectory
from service_kit import Service
from service_kit.groups import S3Settings
from trajectory_body import body_key, pack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1.service_pb2 import GradeRequest, GradeResponse
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded

HERE = "tests.services.reward_grader.test_grading"


@dataclass
class World:
    """Everything around the graders of one test."""

    bus: EventBus
    blobs: S3BlobStore
    fleet: Fleet
    settings: GraderSettings
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
        episode_id = f"{self.run_id}-g{number:05d}-e000-a0"
        lease_id = f"lease-{number}"
        self.fleet.open_leases[lease_id] = episode_id
        stored = body_of(episode_id, self.run_id)
        ref = await self.blobs.put(body_key(self.run_id, episode_id), pack(stored) if body is None else body)
        event = TrajectoryRecorded(
            trajectory_id=stored.trajectory_id,
            episode_id=episode_id,
            run_id=self.run_id,
            group_id=f"{self.run_id}-g{number:05d}",
            member=0,
            group_size=4,
            model=MODEL,
            purpose=common_pb2.PURPOSE_TRAIN,
            split=common_pb2.SPLIT_TRAIN,
            task_slug="checkout",
            task_digest="d" * 64,
            family="db",
            body=common_pb2.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes),
            sampled_by=common_pb2.VersionSpan(oldest=3, newest=4),
            stop_reason=trajectory_pb2.STOP_REASON_ANSWERED,
            num_turns=2,
            num_sampled_tokens=9,
            lease_id=lease_id,
            environment_address=self.fleet.address,
        )
        return event

    async def announce(self, event: TrajectoryRecorded, again: str = "") -> None:
        event_id = f"trajectory.recorded/{event.trajectory_id}{again}"
        await self.bus.publish(event, model=MODEL, event_id=event_id)

    async def outcomes(self, count: int) -> list[Any]:
        await until(lambda: len(self.events) >= count)
        return [delivery.message for delivery in self.events]


def body_of(episode_id: str, run_id: str) -> trajectory_pb2.TrajectoryBody:
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
        trajectory_id=f"traj-{episode_id}",
        episode_id=episode_id,
        run_id=run_id,
        task_slug="checkout",
        prompt=[trajectory_pb2.Message(role="user", content="why?")],
        turns=[looked, answered],
        answer="OOM",
    )


async def until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < give_up_at, f"not true within {timeout_s} s"
        await asyncio.sleep(0.01)


@pytest.fixture
async def world(nats_server: NatsFactory, s3_settings: S3Settings) -> AsyncIterator[World]:
    async with AsyncExitStack() as resources:
        server = nats_server()
        await provision(server.url)
        settings = GraderSettings(
            http_port=0,
            slots=8,
            drain_s=5,
            gone_after_s=2.5,
            grade_timeout_s=5,
            bus=BusSettings(url=server.url),
            s3=s3_settings,
        )
        timings = BusTimings(connect_s=5, drain_s=1, close_s=1)
        blobs, fleet = S3BlobStore(s3_settings), Fleet()
        bus = EventBus(settings.bus, client_name="test", timings=timings)
        for part in (blobs, fleet, bus):
            await part.start()
            resources.push_async_callback(part.stop)
        world = World(bus, blobs, fleet, settings, f"run-{secrets.token_hex(6)}", resources)
        watching = asyncio.create_task(_watch(world))
        resources.push_async_callback(_end, watching)
        yield world


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _watch(world: World) -> None:
    kinds = [TrajectoryGraded, EpisodeFailed]
    replay = cast("AsyncGenerator[Delivery[Any], None]", world.bus.replay(kinds, after_sequence=0))
    async with aclosing(replay) as deliveries:
        async for delivery in deliveries:
            world.events.append(delivery)


def tree(value: float = 0.5, **changes: Any) -> trajectory_pb2.Subscore:
    leaf = trajectory_pb2.Subscore(name="class", weight=1.0, value=1.0, info="right class")
    return trajectory_pb2.Subscore(name="service", weight=0.5, value=value, children=[leaf], **changes)


async def test_the_environments_reward_becomes_a_self_sufficient_fact(world: World) -> None:
    world.fleet.grade = lambda _: GradeResponse(reward=0.75, success=True, subscores=[tree()])
    await world.grader()
    record = await world.record()
    await world.announce(record)
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, fact.success, fact.subscores[0].children[0].name) == (0.75, True, "class")
    for name in ("trajectory_id", "group_id", "group_size", "purpose", "split", "task_digest", "body"):
        assert getattr(fact, name) == getattr(record, name), name
    (request,) = world.fleet.grades
    assert (request.answer, request.lease_id) == ("OOM", "lease-0")
    assert request.transcript.turns[0].tool_results[0].content == "oom"
    assert not any(turn.sampled_ids or turn.sampled_logprobs for turn in request.transcript.turns)
    await until(lambda: world.fleet.closed == ["lease-0"])


@pytest.mark.parametrize(
    "answer",
    [
        GradeResponse(reward=math.nan),
        GradeResponse(reward=math.inf),
        GradeResponse(reward=0.5, subscores=[tree(1.5)]),
        GradeResponse(reward=0.5, subscores=[tree(-0.1)]),
        GradeResponse(reward=0.5, subscores=[tree(math.nan)]),
        GradeResponse(reward=0.5, subscores=[trajectory_pb2.Subscore(name="x", weight=math.inf, value=1)]),
    ],
)
async def test_a_reward_that_is_no_number_is_a_failure_and_never_a_reward(
    world: World, answer: GradeResponse
) -> None:
    world.fleet.grade = lambda _: answer
    await world.grader()
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert (fact.kind, fact.reported_by) == ("reward_invalid", "reward_grader")
    await until(lambda: world.fleet.closed == ["lease-0"])


async def test_a_redelivery_after_the_lease_was_closed_cannot_undo_the_reward(world: World) -> None:
    """Killed between announcing and acknowledging: the environment is gone, the reward stands."""
    await world.grader()
    record = await world.record()
    await world.announce(record)
    await world.outcomes(1)
    await until(lambda: world.fleet.closed == ["lease-0"])
    await world.announce(record, again="/redelivered")
    await world.announce(await world.record(1))
    await world.outcomes(2)
    await asyncio.sleep(0.3)
    assert [type(delivery.message) for delivery in world.events] == [TrajectoryGraded, TrajectoryGraded]


async def test_an_environment_that_is_gone_is_lost_not_wrong(world: World) -> None:
    await world.grader()
    record = await world.record()
    world.fleet.open_leases.clear()
    await world.announce(record)
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "environment_lost"


async def test_a_replica_that_restarts_is_waited_for_and_one_that_stays_away_is_lost(world: World) -> None:
    (port,) = free_ports(1)
    replica = Fleet()
    record = await world.record()
    record.environment_address = f"127.0.0.1:{port}"
    await world.grader(gone_after_s=20.0)
    await world.announce(record)
    await asyncio.sleep(0.5)
    assert world.events == []
    replica.open_leases["lease-0"] = record.episode_id
    await replica.start(port)
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    await replica.stop()


async def test_a_replica_that_stays_away_is_lost_after_a_while(world: World) -> None:
    (port,) = free_ports(1)
    record = await world.record()
    record.environment_address = f"127.0.0.1:{port}"
    await world.grader(gone_after_s=1.0)
    await world.announce(record)
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert (fact.kind, str(port) in fact.detail) == ("environment_lost", True)


@pytest.mark.parametrize(
    ("code", "sent", "kind"),
    [
        (grpc.StatusCode.INTERNAL, None, "scenario_error"),
        (grpc.StatusCode.ABORTED, "reward_invalid", "reward_invalid"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None, "timeout"),
    ],
)
async def test_a_scenario_that_cannot_grade_is_a_typed_failure(
    world: World, code: grpc.StatusCode, sent: str | None, kind: str
) -> None:
    world.fleet.refuse, world.fleet.kind = (code, "it raised"), sent
    await world.grader()
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == kind


@pytest.mark.parametrize("stored", [b"garbage", b""])
async def test_a_corrupt_body_settles_its_episode(world: World, stored: bytes) -> None:
    await world.grader()
    await world.announce(await world.record(body=stored))
    flipped = await world.record(1)
    flipped.body.sha256 = "0" * 64
    await world.announce(flipped)
    facts = await world.outcomes(2)
    assert [fact.kind for fact in facts] == ["body_corrupt", "body_corrupt"]
    assert world.fleet.grades == []


async def test_a_huge_reward_tree_is_cut_to_what_an_event_holds(world: World) -> None:
    leaves = [
        trajectory_pb2.Subscore(name=f"check-{n}", weight=1, value=1, info="x" * 5000) for n in range(500)
    ]
    world.fleet.grade = lambda _: GradeResponse(reward=1.0, success=True, subscores=leaves)
    await world.grader()
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, len(fact.subscores), fact.subscores[0].info) == (1.0, 500, "")


async def test_a_record_that_names_nothing_goes_to_the_dead_letters(world: World) -> None:
    await world.grader()
    nameless = await world.record()
    nameless.lease_id = ""
    await world.announce(nameless)
    await world.announce(await world.record(1))
    (fact,) = await world.outcomes(1)
    await asyncio.sleep(0.3)
    assert fact.group_id.endswith("g00001")
    assert len(world.events) == 1


async def test_a_surprise_is_retried_and_then_settled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def surprise(*_: object) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(GradeTrajectory, "__call__", surprise)
    await world.grader()
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    assert fact.kind == "grader_error"


def brief(transcript: Transcript) -> float:
    """An operator's grader: short conversations are good."""
    assert transcript.messages[1]["tool_calls"][0]["function"]["name"] == "search_logs"
    return 1.0 if len(transcript.messages) <= 4 else 0.0


async def polite(transcript: Transcript) -> float:
    return 0.0 if "please" not in transcript.answer else 1.0


def broken(_: Transcript) -> float:
    raise RuntimeError("no model here")


def silly(_: Transcript) -> float:
    return 7.0


def extra(name: str, weight: float = 1.0) -> ExtraGraderSettings:
    return ExtraGraderSettings(path=f"{HERE}:{name}", weight=weight)


async def test_extra_graders_are_weighed_into_the_tree(world: World) -> None:
    world.fleet.grade = lambda _: GradeResponse(reward=0.5, success=True, subscores=[tree()])
    await world.grader(environment_weight=2.0, extra_graders=(extra("brief"), extra("polite")))
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    # (2 x 0.5 + 1 x 1 + 1 x 0) / 4
    assert fact.reward == 0.5
    assert [(node.name, node.weight, node.value) for node in fact.subscores] == [
        ("environment", 2.0, 0.5),
        ("brief", 1.0, 1.0),
        ("polite", 1.0, 0.0),
    ]
    assert fact.subscores[0].children[0].name == "service"


@pytest.mark.parametrize(("name", "kind"), [("broken", "grader_error"), ("silly", "reward_invalid")])
async def test_an_extra_grader_that_fails_has_not_scored_zero(world: World, name: str, kind: str) -> None:
    await world.grader(extra_graders=(extra(name),))
    await world.announce(await world.record())
    (fact,) = await world.outcomes(1)
    assert fact.kind == kind


def test_an_extra_grader_that_does_not_exist_stops_the_start() -> None:
    for path in ("nowhere.at_all:grade", f"{HERE}:nothing", f"{HERE}:HERE"):
        with pytest.raises(RubricInvalid, match="REWARD_GRADER_EXTRA_GRADERS"):
            load_grader(path, 1.0, "")


async def test_many_records_are_each_graded_once(world: World) -> None:
    def grade(request: GradeRequest) -> GradeResponse:
        return GradeResponse(reward=int(request.lease_id.split("-")[1]) / 100)

    world.fleet.grade = grade
    await world.grader()
    for number in range(60):
        await world.announce(await world.record(number))
    facts = await world.outcomes(60)
    assert sorted(fact.reward for fact in facts) == [number / 100 for number in range(60)]
    await until(lambda: len(world.fleet.closed) == 60)
