"""An evaluation read over gRPC from a planner and a trajectory store."""

import json
from typing import Any

import grpc
import pytest
from tests.libs.upcycle_cli.planner import NOWHERE, Planner, evaluation, serving, training

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import service_pb2 as planner_pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.trajectory.v1 import service_pb2 as store_pb
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.cli.report_text import report_lines
from upcycle.platform import Addresses, Platform
from upcycle.reporting import reading
from upcycle.reporting.episodes import NoEvaluation
from upcycle.reporting.reading import read_evaluation
from upcycle.reporting.report import report_of
from upcycle.reporting.shown_answers import ShownAnswer


class Judge(Planner):
    """Its taskset has digests."""

    async def GetTaskset(self, request: Any, context: Any) -> planner_pb.GetTasksetResponse:
        tasks = [ts.Task(slug=slug, digest=f"digest of {slug}") for slug in ("a", "b")]
        return planner_pb.GetTasksetResponse(taskset=ts.Taskset(name=request.name, tasks=tasks))


class Store(TrajectoryServiceServicer):
    """One summary a page; the body of traj-gone was removed."""

    def __init__(self) -> None:
        self.summaries = [summary("traj-a", 1.0), summary("traj-b", 0.0), summary("traj-gone", 0.0)]

    async def ListTrajectories(self, request: Any, context: Any) -> store_pb.ListTrajectoriesResponse:
        at = int(request.page_token or 0)
        more = str(at + 1) if at + 1 < len(self.summaries) else ""
        page = self.summaries[at : at + 1]
        return store_pb.ListTrajectoriesResponse(trajectories=page, next_page_token=more)

    async def GetTrajectory(self, request: Any, context: Any) -> store_pb.GetTrajectoryResponse:
        if request.trajectory_id == "traj-gone":
            await context.abort(grpc.StatusCode.NOT_FOUND, "its body was removed")
        call = pb.ToolCall(call_id="1", name="read")
        result = pb.ToolResult(call_id="1", content="no file 7", is_error=True)
        turn = pb.Turn(tool_calls=[call], tool_results=[result])
        body = pb.TrajectoryBody(turns=[turn], stop_reason=pb.STOP_REASON_MAX_TURNS)
        return store_pb.GetTrajectoryResponse(body=body)


def summary(trajectory_id: str, value: float) -> pb.TrajectorySummary:
    length = pb.Subscore(name="length", value=0.5)
    return pb.TrajectorySummary(
        episode=common.EpisodeIdentity(trajectory_id=trajectory_id),
        graded=True,
        num_turns=3,
        num_sampled_tokens=40,
        subscores=[pb.Subscore(name="right", value=value, children=[length])],
    )


def result(slug: str, name: str, reward: float | None) -> ts.EpisodeResult:
    graded = reward is not None
    return ts.EpisodeResult(
        episode_id=f"ep-{name}",
        task_slug=slug,
        trajectory_id=f"traj-{name}",
        status=ts.EPISODE_STATUS_GRADED if graded else ts.EPISODE_STATUS_FAILED,
        reward=reward or 0.0,
        success=reward == 1.0,
        failure_kind="" if graded else "timeout",
        num_turns=3,
        sampled_by=common.VersionSpan(oldest=2, newest=3),
    )


@pytest.fixture
def planner() -> Judge:
    """Of one evaluation: task a solved, b not, and one episode of each that says less."""
    said = Judge()  # type: ignore[abstract]
    said.runs = [evaluation("run-e"), training("run-t")]
    said.results = [
        result("a", "a", 1.0),
        result("b", "b", 0.0),
        result("b", "gone", 0.0),
        result("a", "x", None),
    ]
    return said


async def test_results_get_what_the_store_and_the_taskset_know(planner: Judge) -> None:
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_TrajectoryServiceServicer_to_server, Store())  # type: ignore[abstract]
    await server.start()
    try:
        async with serving(planner) as addresses:
            peers = {**addresses.peers, "trajectories": server.address}
            async with Platform(Addresses(peers, "the test")) as platform:
                found = await read_evaluation(platform, "run-e")
    finally:
        await server.stop()
    solved, failed, unread, missing = found.episodes
    assert (found.versions, found.notice, found.num_unread) == ((2, 3), "", 0)
    assert (solved.task_digest, solved.num_tokens) == ("digest of a", 40)
    assert dict(solved.subscores) == {"right": 1.0, "right/length": 0.5}
    assert (failed.first_tool_error, failed.ended) == ("read: no file #", "out of turns after read")
    assert (unread.first_tool_error, unread.ended) == ("", "")
    assert (missing.reward, missing.failure, missing.num_tokens) == (None, "timeout", None)
    assert report_of(found) is not None


class RevealingStore(Store):
    """Its tool says to each what the agent of task b has to find."""

    async def GetTrajectory(self, request: Any, context: Any) -> store_pb.GetTrajectoryResponse:
        call = pb.ToolCall(call_id="1", name="read")
        result = pb.ToolResult(call_id="1", content="The cause: Bad\n  deploy.")
        turn = pb.Turn(tool_calls=[call], tool_results=[result])
        return store_pb.GetTrajectoryResponse(body=pb.TrajectoryBody(turns=[turn]))


class Secret(Judge):
    """expected: what each task is to find."""

    def __init__(self, expected: dict[str, str]) -> None:
        super().__init__()
        self.expected = expected

    async def GetTaskset(self, request: Any, context: Any) -> planner_pb.GetTasksetResponse:
        args = {slug: json.dumps({"expected": secret}) for slug, secret in self.expected.items()}
        tasks = [ts.Task(slug=slug, args_json=text) for slug, text in args.items()]
        return planner_pb.GetTasksetResponse(taskset=ts.Taskset(name=request.name, tasks=tasks))


@pytest.mark.parametrize(
    ("expected", "shown"),
    [
        ({"a": "pool exhausted", "b": "bad deploy"}, (ShownAnswer("b", "read", 2),)),
        ({"a": "bad deploy", "b": "bad deploy"}, (ShownAnswer("b", "read", 2), ShownAnswer("a", "read", 1))),
        ({"a": "cause", "b": "bad deploy"}, ()),  # a text that names several lists candidates
        ({"a": "", "b": ""}, ()),
    ],
)
async def test_a_tool_whose_result_held_the_answer_is_named_with_its_task(
    planner: Judge, expected: dict[str, str], shown: tuple[ShownAnswer, ...]
) -> None:
    said = Secret(expected)  # type: ignore[abstract]
    said.runs, said.results = planner.runs, planner.results
    store = RevealingStore()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1).add(add_TrajectoryServiceServicer_to_server, store)
    await server.start()
    try:
        async with serving(said) as addresses:
            peers = {**addresses.peers, "trajectories": server.address}
            async with Platform(Addresses(peers, "the test")) as platform:
                found = await read_evaluation(platform, "run-e")
    finally:
        await server.stop()
    report = report_of(found)
    assert report is not None
    assert report.shown_answers == shown
    lines = "\n".join(report_lines(report, found))
    assert ("a tool's result held the answer word for word: " in lines) == bool(shown)
    assert all(f"{one.count}×  {one.task}" in lines for one in shown)


async def test_without_the_store_the_results_stand_and_the_notice_says_what_is_missing(
    planner: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "INDEX_WAIT_S", 0.0)
    async with serving(planner) as addresses:
        assert addresses.peers["trajectories"] == NOWHERE
        async with Platform(addresses) as platform:
            found = await read_evaluation(platform, "run-e")
            with pytest.raises(NoEvaluation, match="run-t is no evaluation"):
                await read_evaluation(platform, "run-t")
    assert found.notice.startswith("no subscores, tokens and last turns: ")
    assert [one.reward for one in found.episodes] == [1.0, 0.0, 0.0, None]
