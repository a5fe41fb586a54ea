"""Pins of runs whose run.finished the stream lost are dropped, so that other evaluations get an engine."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from grpc_edge import GrpcServer, Peer
from policy_engine.adapters.planned_runs import GrpcPlannedRuns
from policy_engine.domain import PinRequests
from policy_engine.loops import LostEnds
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import (
    TasksetServiceServicer,
    TasksetServiceStub,
    add_TasksetServiceServicer_to_server,
)
from upcycle.errors import Unavailable

RUNNING, COMPLETED = taskset_pb2.RUN_STATE_RUNNING, taskset_pb2.RUN_STATE_COMPLETED


class Planner(TasksetServiceServicer):
    """Answers GetRun; breaks where it has no state for a run that it knows."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    async def GetRun(self, request: Any, context: Any) -> service_pb2.GetRunResponse:
        if request.run_id not in self.states:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no run {request.run_id}")
        if self.states[request.run_id] is None:
            await context.abort(grpc.StatusCode.INTERNAL, "a bug")
        run = taskset_pb2.Run(run_id=request.run_id, state=self.states[request.run_id])
        return service_pb2.GetRunResponse(run=run)


@dataclass
class Bench:
    """Pins of two evaluations, and the planner that is asked about them."""

    planner: Planner
    ends: LostEnds
    pins: PinRequests
    woken: list[str] = field(default_factory=list)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    planner, pins, woken = Planner(), PinRequests(), list[str]()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0)
    server.add(add_TasksetServiceServicer_to_server, planner, {})
    await server.start()
    peer = Peer("tasksets", server.address, idempotent=GrpcPlannedRuns.IDEMPOTENT)
    pins.pin("run-a", 3)
    pins.pin("run-b", 4)
    planner.states = {"run-a": COMPLETED, "run-b": RUNNING}
    runs = GrpcPlannedRuns(TasksetServiceStub(peer.channel))
    yield Bench(planner, LostEnds(pins, runs, lambda: woken.append("look")), pins, woken)
    await peer.stop()
    await server.stop()


async def test_the_pin_of_a_run_is_dropped_at_the_second_look_in_a_row_that_finds_it_over(
    bench: Bench,
) -> None:
    """A run.finished that is on its way arrives between two looks."""
    for state in (COMPLETED, RUNNING, COMPLETED):
        bench.planner.states["run-a"] = state
        await bench.ends.look()
        assert bench.pins.versions() == [3, 4]
    assert bench.woken == []
    await bench.ends.look()
    assert bench.pins.versions() == [4]
    assert bench.woken == ["look"]


async def test_the_pin_of_a_run_that_the_planner_does_not_know_is_kept(bench: Bench) -> None:
    """The planner's database may have been made anew."""
    bench.planner.states.clear()
    for _ in range(3):
        await bench.ends.look()
    assert bench.pins.runs == ["run-a", "run-b"]


async def test_a_planner_that_does_not_answer_ends_no_pin_and_no_supervisor(bench: Bench) -> None:
    """Unavailable is what the loop waits through."""
    await bench.ends.look()
    bench.planner.states["run-b"] = None
    with pytest.raises(Unavailable, match="the planner, about run-b"):
        await bench.ends.look()
    assert bench.pins.versions() == [3, 4]
