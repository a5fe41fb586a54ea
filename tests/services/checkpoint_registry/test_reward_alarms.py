"""What the registry asks trajectory_store about a run, over gRPC."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from checkpoint_registry.adapters.reward_alarms import IDEMPOTENT, GrpcRewardAlarms
from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from reward_monitors import MonitorKind
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.moments import timestamp

MOMENT = datetime(2026, 11, 28, 8, 0, tzinfo=UTC)


class Store(TrajectoryServiceServicer):
    """A trajectory_store with one alarm of a kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked: list[pb.ListAlarmsRequest] = []

    async def ListAlarms(self, request: Any, context: Any) -> pb.ListAlarmsResponse:
        self.asked.append(request)
        alarm = pb.RewardAlarm(run_id="run-a", kind=self.kind, text="40% of the last 64 episodes")
        alarm.trajectory_ids.append("traj-1")
        return pb.ListAlarmsResponse(alarms=[alarm], unseen="two are unread")

    async def ListReviews(self, request: Any, context: Any) -> pb.ListReviewsResponse:
        assert request == pb.ListReviewsRequest(run_id="run-a", top=3)
        if self.kind == "old":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such rpc")
        return pb.ListReviewsResponse(confirmed=2)


def store_of(kind: str) -> Store:
    """The generated base class declares every rpc abstract, and answers those that are left out."""
    return Store(kind)  # type: ignore[abstract]


@asynccontextmanager
async def asking(store: Store) -> AsyncIterator[GrpcRewardAlarms]:
    server = GrpcServer("127.0.0.1", 0, OPEN)
    server.add(add_TrajectoryServiceServicer_to_server, store, {})
    await server.start()
    peer = Peer("trajectories", server.address, idempotent=IDEMPOTENT)
    await peer.start()
    yield GrpcRewardAlarms(peer)
    await peer.stop()
    await server.stop()


@pytest.mark.parametrize("kind", list(MonitorKind))
async def test_an_open_alarm_of_every_kind_is_named(kind: MonitorKind) -> None:
    store = store_of(kind.value)
    async with asking(store) as alarms:
        found = await alarms.open_alarms(["run-a"], MOMENT)
    assert str(found) == f"{kind} of run run-a: 40% of the last 64 episodes"
    assert found.unseen == "two are unread"
    asked = pb.ListAlarmsRequest(run_ids=["run-a"], only_open=True, seen_until=timestamp(MOMENT))
    assert store.asked == [asked]


@pytest.mark.parametrize(("kind", "confirmed"), [("leak_shown", 2), ("old", 0)])
async def test_a_store_without_reviews_confirms_nothing(kind: str, confirmed: int) -> None:
    async with asking(store_of(kind)) as alarms:
        assert await alarms.num_confirmed("run-a", 3) == confirmed


async def test_more_runs_than_the_store_takes_at_once_are_asked_for_in_parts() -> None:
    store, runs = store_of("length_growth"), [f"run-{number}" for number in range(250)]
    async with asking(store) as alarms:
        found = await alarms.open_alarms(runs, MOMENT)
    assert [len(request.run_ids) for request in store.asked] == [100, 100, 50]
    assert [one for request in store.asked for one in request.run_ids] == runs
    assert (len(found.alarms), found.unseen) == (3, "two are unread")
