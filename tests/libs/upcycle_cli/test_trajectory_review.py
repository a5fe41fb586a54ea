"""`upcycle trajectories alarms` and `review` name a run as every command does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving, training

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.cli.main import run
from upcycle.cli.runs import resolve_run
from upcycle.platform import Addresses, Platform


class Store(TrajectoryServiceServicer):
    """One alarm, of run-t, and no trajectory."""

    async def ListAlarms(self, request: Any, context: Any) -> pb.ListAlarmsResponse:
        alarm = pb.RewardAlarm(run_id="run-t", kind="shadow_disagrees", text="they differ", since_version=3)
        asked = not request.run_ids or "run-t" in request.run_ids
        return pb.ListAlarmsResponse(alarms=[alarm] if asked else [])

    async def ListTrajectories(self, request: Any, context: Any) -> pb.ListTrajectoriesResponse:
        return pb.ListTrajectoriesResponse()

    async def ListReviews(self, request: Any, context: Any) -> pb.ListReviewsResponse:
        return pb.ListReviewsResponse()


@pytest.fixture
async def where() -> AsyncIterator[Addresses]:
    """A training run, and what gate and tracking evaluated since."""
    planner = Planner()  # type: ignore[abstract]
    pairs, tracked = evaluation("run-gate"), evaluation("run-track")
    pairs.spec.against_version = 0
    tracked.spec.label = "track run-t step 5"
    planner.runs = [pairs, tracked, training("run-t"), evaluation("run-e")]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_TrajectoryServiceServicer_to_server, Store())  # type: ignore[abstract]
    await server.start()
    async with serving(planner) as addresses:
        yield replace(addresses, peers={**addresses.peers, "trajectories": server.address})
    await server.stop()


async def said(where: Addresses, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and error of the command."""
    with pytest.MonkeyPatch.context() as patched:
        for peer, address in where.peers.items():
            patched.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
        status = await asyncio.to_thread(run, ["trajectories", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


async def test_last_is_what_somebody_asked_for(where: Addresses) -> None:
    async with Platform(where) as platform:
        assert await resolve_run(platform, "last") == "run-t"
        assert await resolve_run(platform, "run-gate") == "run-gate"


async def test_alarms_of_the_last_run_and_none_of_another(
    where: Addresses, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = await said(where, capsys, "alarms", "last")
    assert (status, out) == (0, "run-t  shadow_disagrees  open  since v3: they differ\n")
    assert await said(where, capsys, "alarms", "run-e") == (0, "", "no alarm\n")


@pytest.mark.parametrize("command", ["alarms", "review"])
async def test_a_run_that_is_not_there_is_refused(
    where: Addresses, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    status, out, err = await said(where, capsys, command, "run-nope")
    assert (status, out) == (2, "")
    assert "no run run-nope" in err
