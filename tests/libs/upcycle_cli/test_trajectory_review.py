"""`upcycle trajectories alarms` and `review` name a run as every command does."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.cli.main import run
from upcycle.cli.runs import resolve_run
from upcycle.cli.trajectories import resolve_trajectory
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


class Reviewed(Store):
    """Three trajectories that earned 1, of which Ada reviewed the first; the other two are of one kind."""

    def __init__(self) -> None:
        self.verdicts: list[pb.ReviewTrajectoryRequest] = []

    async def ListTrajectories(self, request: Any, context: Any) -> pb.ListTrajectoriesResponse:
        found = [summary(name) for name in ("traj-a", "traj-b", "traj-c", "traj-set-aside")]
        found[-1].quarantine_reason = "reward hack: it changed what graders read"
        return pb.ListTrajectoriesResponse(trajectories=found)

    async def GetTrajectory(self, request: Any, context: Any) -> pb.GetTrajectoryResponse:
        return pb.GetTrajectoryResponse(summary=summary(request.trajectory_id))

    async def ListReviews(self, request: Any, context: Any) -> pb.ListReviewsResponse:
        return pb.ListReviewsResponse(reviews=[pb.Review(trajectory_id="traj-a", reviewer="ada (operator)")])

    async def ListSignatures(self, request: Any, context: Any) -> pb.ListSignaturesResponse:
        kind = {"monitors": ["shadow_disagrees"], "num_trajectories": 2, "mean_reward": 1.0}
        batches = [
            pb.SignatureBatch(signature="s1", trajectory_id="traj-a", num_trajectories=1),
            pb.SignatureBatch(signature="s2", trajectory_id="traj-b", **kind),  # type: ignore[arg-type]
        ]
        return pb.ListSignaturesResponse(batches=batches)

    async def ReviewTrajectory(self, request: Any, context: Any) -> pb.ReviewTrajectoryResponse:
        self.verdicts.append(request)
        return pb.ReviewTrajectoryResponse(quarantined=["traj-b", "traj-c"])


def summary(name: str) -> TrajectorySummary:
    found = TrajectorySummary(graded=True, reward=1.0, success=True)
    found.episode.trajectory_id = name
    return found


class Playing(Store):
    """The newest trajectory is of the gate's pairs, or of a run that the planner forgot."""

    newest_run = "run-gate"

    async def ListTrajectories(self, request: Any, context: Any) -> pb.ListTrajectoriesResponse:
        run_id = request.filter.run_id or self.newest_run
        found = summary(f"traj-of-{run_id}")
        found.episode.run_id = run_id
        return pb.ListTrajectoriesResponse(trajectories=[found])


@pytest.fixture
def store() -> Store:
    return Store()  # type: ignore[abstract]


@pytest.fixture
def reviewed() -> Reviewed:
    return Reviewed()  # type: ignore[abstract]


@pytest.fixture
async def where(store: Store) -> AsyncIterator[Addresses]:
    """A training run, and what gate and tracking evaluated since."""
    async with platform_with(store) as addresses:
        yield addresses


@asynccontextmanager
async def platform_with(store: Store) -> AsyncIterator[Addresses]:
    planner = Planner()  # type: ignore[abstract]
    pairs, tracked = evaluation("run-gate"), evaluation("run-track")
    pairs.spec.against_version = 0
    tracked.spec.label = "track run-t step 5"
    planner.runs = [pairs, tracked, training("run-t"), evaluation("run-e")]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_TrajectoryServiceServicer_to_server, store)
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


@pytest.mark.parametrize(
    ("newest_run", "shown"), [("run-gate", "traj-of-run-t"), ("run-gone", "traj-of-run-gone")]
)
async def test_the_last_trajectory_is_of_what_somebody_asked_for(newest_run: str, shown: str) -> None:
    store = Playing()  # type: ignore[abstract]
    store.newest_run = newest_run
    async with platform_with(store) as where, Platform(where) as platform:
        assert await resolve_trajectory(platform, "last") == shown


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


@pytest.mark.parametrize("options", [(), ("--by-signature",)])
async def test_a_hack_is_asked_about_once_for_all_of_its_kind(
    reviewed: Reviewed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    """What Ada reviewed before, what is set aside already, and what her verdict sets aside are not shown."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("h it lists all causes\ns\ns\n"))
    async with platform_with(reviewed) as where:
        status, _, err = await said(where, capsys, "review", "run-t", "--by", "ada", *options)
    assert status == 0
    assert [(one.trajectory_id, one.note) for one in reviewed.verdicts] == [("traj-b", "it lists all causes")]
    assert "set aside: 2 trajectories" in err
    of_kind = "traj-b: one of 2 trajectories of its kind, mean reward 1.000, alarms shadow_disagrees"
    assert (of_kind in err) == bool(options)


async def test_kinds_are_lines_of_json_and_are_not_drawn(
    reviewed: Reviewed, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("review", "run-t", "--by", "eve", "--by-signature")
    async with platform_with(reviewed) as where:
        _, out, _ = await said(where, capsys, *asked, "--json")
        status, _, err = await said(where, capsys, *asked, "--sample", "3")
    assert [json.loads(line)["signature"] for line in out.splitlines()] == ["s1", "s2"]
    assert (status, "--sample beside --by-signature" in err) == (2, True)
