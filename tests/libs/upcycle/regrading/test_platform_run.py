"""`upcycle trajectories regrade` of a run that a platform keeps, by the source that it packed."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.trajectory.v1 import service_pb2 as tpb
from upcycle.api.trajectory.v1 import trajectory_pb2 as tj
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.cli.main import run
from upcycle.environment.source_files import SourceFiles, read_source
from upcycle.environment.source_pack import pack_source
from upcycle.platform import Addresses
from upcycle.tasks import Task, Taskset

RUN: Final = "run-0123456789ab"
Said = tuple[int, str, str]


class RegradePlanner(Planner):
    """Knows a run on the shop's tasks, and keeps its source until a test says otherwise."""

    def __init__(self, taskset: Taskset, files: SourceFiles) -> None:
        super().__init__()
        self.files = files
        self.packed: bytes | None = pack_source(files)
        self.environment = ts.EnvironmentSpec(name="shop", python=ts.PythonSource(path="/gone/env.py"))
        self.tasks = taskset.tasks
        done = evaluation(RUN, "shop-tasks@2")
        done.source_digest = files.digest
        self.runs = [done]

    async def GetTaskset(self, request: Any, context: Any) -> pb.GetTasksetResponse:
        assert request.name == "shop-tasks@2"
        rows = [
            ts.Task(slug=one.slug, scenario=one.scenario, args_json=one.args_json, family=one.family)
            for one in self.tasks
        ]
        return pb.GetTasksetResponse(
            taskset=ts.Taskset(name="shop-tasks", environment=self.environment, tasks=rows)
        )

    async def GetSource(self, request: Any, context: Any) -> AsyncIterator[pb.GetSourceResponse]:
        if self.packed is None or request.source_digest != self.files.digest:
            await context.abort(grpc.StatusCode.NOT_FOUND, "source is not kept here: retention removed it")
            return
        for begin in range(0, len(self.packed), 100):
            yield pb.GetSourceResponse(packed=self.packed[begin : begin + 100])


class Store(TrajectoryServiceServicer):
    """One trajectory of each task, as the platform records it."""

    def __init__(self, tasks: tuple[Task, ...], source_digest: str) -> None:
        self.records = {f"traj-{one.slug}": record(one, source_digest) for one in tasks}
        self.removed: set[str] = set()

    async def ListTrajectories(self, request: Any, context: Any) -> tpb.ListTrajectoriesResponse:
        summaries = [one.summary for one in self.records.values()]
        return tpb.ListTrajectoriesResponse(trajectories=summaries)

    async def GetTrajectory(self, request: Any, context: Any) -> tpb.GetTrajectoryResponse:
        if request.trajectory_id in self.removed:
            await context.abort(grpc.StatusCode.NOT_FOUND, "its body was removed by retention")
        return self.records[request.trajectory_id]


def record(task: Task, source_digest: str) -> tpb.GetTrajectoryResponse:
    """It sold one, and said so; of milk it says something else."""
    name = f"traj-{task.slug}"
    identity = EpisodeIdentity(
        trajectory_id=name,
        episode_id=name.replace("traj", "ep"),
        run_id=RUN,
        task_slug=task.slug,
        task_digest=task.digest,
        taskset="shop-tasks@2",
    )
    call = tj.ToolCall(call_id="c0", name="sell", arguments_json=json.dumps({"item": task.slug}))
    states = [
        tj.StateSnapshot(value_json=json.dumps({"sold": sold, "hidden": 0})) for sold in ([], [task.slug])
    ]
    result = tj.ToolResult(call_id="c0", content="1 sold", state=states[1])
    answer = "a lot" if task.slug == "milk" else "1 sold"
    body = tj.TrajectoryBody(
        episode=identity,
        prompt=[tj.Message(role="user", content=f"How much {task.slug}?")],
        turns=[tj.Turn(tool_calls=[call], tool_results=[result], sampled_ids=[1, 2]), tj.Turn(text=answer)],
        stop_reason=tj.STOP_REASON_ANSWERED,
        answer=answer,
        source_digest=source_digest,
        first_state=states[0],
        last_state=states[1],
    )
    reward = float(answer == "1 sold")
    return tpb.GetTrajectoryResponse(
        summary=tj.TrajectorySummary(
            episode=identity,
            graded=True,
            reward=reward,
            success=bool(reward),
            subscores=[tj.Subscore(name="exact", weight=1.0, value=reward)],
        ),
        body=body,
    )


class RegradedPlatform:
    """The two services, and the command against them."""

    def __init__(
        self, planner: RegradePlanner, store: Store, where: Addresses, read: Callable[[], Any]
    ) -> None:
        self.planner, self.store = planner, store
        self._where, self._read = where, read

    async def regrade(self, *flags: str) -> Said:
        """Exit status, standard output and error."""
        with pytest.MonkeyPatch.context() as patched:
            for peer, address in self._where.peers.items():
                patched.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
            status = await asyncio.to_thread(run, ["trajectories", "regrade", *flags])
        printed = self._read()
        return status, printed.out, printed.err


@pytest.fixture
async def platform(shop: Path, capfd: pytest.CaptureFixture[str]) -> AsyncIterator[RegradedPlatform]:
    """Its source was packed; what lies in the folder of the author is another one since."""
    whole = Taskset.from_file(shop / "tasks.py")
    tasks = tuple(one for one in whole if one.slug in ("tea", "milk"))
    files = read_source(shop / "env.py")
    (shop / "outside.txt").unlink()
    packed = SourceFiles(files.root, files.entry, {**files.files, "outside.txt": b"dry"})
    planner = RegradePlanner(Taskset("shop-tasks", tasks, "unassigned"), packed)  # type: ignore[abstract]
    store = Store(tasks, packed.digest)  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_TrajectoryServiceServicer_to_server, store)
    await server.start()
    async with serving(planner) as addresses:
        where = replace(addresses, peers={**addresses.peers, "trajectories": server.address})
        yield RegradedPlatform(planner, store, where, capfd.readouterr)
    await server.stop()


async def test_a_run_is_graded_again_by_the_source_that_it_packed(platform: RegradedPlatform) -> None:
    status, out, err = await platform.regrade(RUN)
    assert status == 0, out + err
    digest = platform.planner.files.digest[:12]
    assert f"{RUN}: 2 of 2 trajectories graded again by the source that judged it, {digest}" in out
    assert "reward 0.500 → 0.500: +0.000; 0 up, 0 down" in out
    assert "each one has the grade that it had" in out


async def test_it_is_graded_by_an_edited_file(platform: RegradedPlatform, shop: Path) -> None:
    (shop / "outside.txt").write_text("dry")
    (shop / "grading.py").write_text("def grade(answer, wanted, sold):\n    return float(sold)\n")
    status, out, err = await platform.regrade("last", "--source", "env.py")
    assert status == 0, out + err
    assert "success 50.0% → 100.0%" in out
    assert "upcycle trajectories show traj-milk" in out


async def test_a_removed_body_and_another_source_have_no_new_grade(platform: RegradedPlatform) -> None:
    platform.store.removed.add("traj-tea")
    platform.store.records["traj-milk"].body.source_digest = "ab" * 32
    status, out, _ = await platform.regrade(RUN)
    assert status == 1
    assert "its body was removed by retention" in out
    assert "it was judged by source abababababab, and its run by another one" in out


async def test_extra_graders_are_not_compared(platform: RegradedPlatform) -> None:
    summary = platform.store.records["traj-tea"].summary
    own = tj.Subscore(name="environment", weight=1.0, value=1.0, children=list(summary.subscores))
    del summary.subscores[:]
    summary.subscores.extend([own, tj.Subscore(name="politeness", weight=1.0, value=0.0)])
    summary.reward = 0.5
    status, out, _ = await platform.regrade(RUN)
    assert status == 0
    assert "1 stored reward has a part of the operator's extra graders" in out
    assert "each one has the grade that it had" in out


async def test_what_a_failed_answer_earned_is_graded_again_and_an_earlier_failure_is_not(
    platform: RegradedPlatform,
) -> None:
    milk, tea = (platform.store.records[name] for name in ("traj-milk", "traj-tea"))
    milk.summary.failure.kind = "answer_error"
    tea.body.failure.kind = tea.summary.failure.kind = "context_spent"
    tea.summary.reward, tea.summary.success = 0.0, False
    status, out, _ = await platform.regrade(RUN)
    assert status == 0
    assert "1 of 2 trajectories graded again" in out
    assert "1 0 as before: the policy failed before it answered" in out


async def test_guidance_is_part_of_the_prompt(platform: RegradedPlatform) -> None:
    tea = platform.store.records["traj-tea"]
    tea.summary.episode.guided_after, tea.body.guidance = "ep-before", "count first"
    tea.body.prompt[0].content += "\n\ncount first"
    assert (await platform.regrade(RUN))[0] == 0


def gone(platform: RegradedPlatform) -> None:
    platform.planner.packed = None


def other(platform: RegradedPlatform) -> None:
    platform.planner.packed = pack_source(SourceFiles(Path("/"), "env.py", {"env.py": b""}))


def damaged(platform: RegradedPlatform) -> None:
    platform.planner.packed = b"no archive"


def served(platform: RegradedPlatform) -> None:
    platform.planner.environment.tcp.url = "tcp://127.0.0.1:1"


def not_known(platform: RegradedPlatform) -> None:
    platform.planner.runs[0].source_digest = ""


def ungraded(platform: RegradedPlatform) -> None:
    for one in platform.store.records.values():
        one.summary.graded = False


def other_tasks(platform: RegradedPlatform) -> None:
    platform.planner.tasks = platform.planner.tasks[:1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (gone, "retention removed it; name the file that declares the environment: --source"),
        (other, "what is kept as source"),
        (damaged, "cannot be read"),
        (served, "is served at tcp://127.0.0.1:1: no source of it is kept"),
        (not_known, f"which source judged {RUN} is not known"),
        (ungraded, f"{RUN} has no graded trajectory"),
        (other_tasks, f"has no task 'milk' as {RUN} played it"),
    ],
)
async def test_a_run_that_cannot_be_graded_again_is_refused(
    platform: RegradedPlatform, change: Callable[[RegradedPlatform], None], says: str
) -> None:
    change(platform)
    status, out, err = await platform.regrade(RUN)
    assert (status, out) == (2, "")
    assert says in err


async def test_a_run_that_is_not_there_is_refused(platform: RegradedPlatform) -> None:
    status, _, err = await platform.regrade("run-ffffffffffff")
    assert status == 2
    assert "no run run-ffffffffffff" in err
