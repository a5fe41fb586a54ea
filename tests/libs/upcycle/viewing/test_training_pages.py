"""Pages of training runs, and of what does not answer: planner, trainer and registry as doubles."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from tests.libs.upcycle.run_pages.reading_pages import read
from tests.libs.upcycle_cli.planner import NOWHERE, Planner, evaluation, serving, training

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as rg
from upcycle.api.registry.v1 import service_pb2 as registry_pb
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.training.v1 import service_pb2 as trainer_pb
from upcycle.api.training.v1 import training_pb2 as tr
from upcycle.api.training.v1.service_pb2_grpc import (
    TrainingServiceServicer,
    add_TrainingServiceServicer_to_server,
)
from upcycle.api.trajectory.v1 import service_pb2 as store_pb
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.platform import Addresses, Platform
from upcycle.reporting import reading
from upcycle.run_pages.rendering import page_of
from upcycle.viewing.asked import Asked
from upcycle.viewing.platform_run import read_page
from upcycle.viewing.settings import differing_settings


class Trainer(TrainingServiceServicer):
    """Remembers steps 3 and 4 of any run: it was restarted."""

    async def GetSession(self, request: Any, context: Any) -> trainer_pb.GetSessionResponse:
        steps = [
            tr.StepPoint(
                step=step,
                version=step,
                metrics=tr.TrainingMetrics(
                    values={"reward_mean": step / 10, "entropy": 1.5}, staleness={0: 1, 1: 3}
                ),
            )
            for step in (3, 4)
        ]
        return trainer_pb.GetSessionResponse(steps=steps)


class Registry(RegistryServiceServicer):
    """A promoted checkpoint of run-t, one that is held, and one of another run."""

    async def ListCheckpoints(self, request: Any, context: Any) -> registry_pb.ListCheckpointsResponse:
        gate = rg.GateReport(
            candidate_rate=0.5, head_rate=0.25, pooled_lower_bound=0.125, confidence=0.95, num_tasks=24
        )
        promoted = rg.Checkpoint(
            checkpoint_id="ckpt-4",
            run_id="run-t",
            step=4,
            version=4,
            state=rg.CHECKPOINT_STATE_PROMOTED,
            gate=gate,
            reason="passed <b>",
        )
        held = rg.Checkpoint(
            checkpoint_id="ckpt-2",
            run_id="run-t",
            step=2,
            version=2,
            state=rg.CHECKPOINT_STATE_HELD,
            reason="no gain",
            metrics={"entropy": 1.75},
        )
        other = rg.Checkpoint(
            run_id="run-x", step=9, version=9, state=rg.CHECKPOINT_STATE_HELD, reason="other"
        )
        return registry_pb.ListCheckpointsResponse(checkpoints=[held, promoted, other])


class Store(TrajectoryServiceServicer):
    """Two trained episodes of step 1, one that is not graded."""

    async def ListTrajectories(self, request: Any, context: Any) -> store_pb.ListTrajectoriesResponse:
        found = [summary(2, graded=False), summary(1, 1.0), summary(0, 0.5)]
        return store_pb.ListTrajectoriesResponse(trajectories=found)

    async def GetTrajectory(self, request: Any, context: Any) -> store_pb.GetTrajectoryResponse:
        if request.trajectory_id == "traj-1":
            await context.abort(grpc.StatusCode.NOT_FOUND, "its body was removed")
        turn = pb.Turn(text="42", sampled_ids=[7, 8], sampled_texts=["4", "2"], sampled_logprobs=[-0.1, -3.0])
        body = pb.TrajectoryBody(turns=[turn], sampled_by=common.VersionSpan(oldest=1, newest=2))
        return store_pb.GetTrajectoryResponse(summary=summary(0, 0.5), body=body)


def summary(at: int, reward: float = 0.0, *, graded: bool = True) -> pb.TrajectorySummary:
    identity = common.EpisodeIdentity(trajectory_id=f"traj-{at}", episode_id=f"ep-{at}", task_slug="sum")
    state = pb.LEDGER_STATE_TRAINED if graded else pb.LEDGER_STATE_RECORDED
    ledger = pb.LedgerEntry(state=state, step=1 if graded else 0)
    graders = [
        pb.Subscore(name="right", value=reward, weight=1, children=[pb.Subscore(name="exact", value=reward)])
    ]
    return pb.TrajectorySummary(
        episode=identity, graded=graded, reward=reward, success=reward == 1, ledger=ledger, subscores=graders
    )


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    """With one training run and one evaluation that is going on."""
    planner = Planner()  # type: ignore[abstract]
    going = evaluation("run-e")
    going.state = ts.RUN_STATE_RUNNING
    planner.runs = [training("run-t", step=4, notice="50 of 50 groups had no spread"), going]
    planner.results.append(ts.EpisodeResult(task_slug="b", status=ts.EPISODE_STATUS_PENDING))
    async with AsyncExitStack() as stack:
        addresses = await stack.enter_async_context(serving(planner))
        peers = dict(addresses.peers)
        doubles: tuple[tuple[str, Any, Any], ...] = (
            ("training", add_TrainingServiceServicer_to_server, Trainer()),  # type: ignore[abstract]
            ("registry", add_RegistryServiceServicer_to_server, Registry()),  # type: ignore[abstract]
            ("trajectories", add_TrajectoryServiceServicer_to_server, Store()),  # type: ignore[abstract]
        )
        for peer, add, servicer in doubles:
            server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1).add(add, servicer)
            await server.start()
            stack.push_async_callback(server.stop)
            peers[peer] = server.address
        yield await stack.enter_async_context(Platform(Addresses(peers, "the test")))


async def test_steps_are_the_trainers_and_before_them_those_that_checkpoints_and_the_ledger_know(
    platform: Platform,
) -> None:
    page = await read_page(platform, "run-t", Asked(tokens=True))
    assert [(one.step, dict(one.values), one.staleness) for one in page.steps] == [
        (1, {"reward_mean": 0.75, "success_rate": 0.5}, None),
        (2, {"entropy": 1.75}, None),
        (3, {"reward_mean": 0.3, "entropy": 1.5}, 0.75),
        (4, {"reward_mean": 0.4, "entropy": 1.5}, 0.75),
    ]
    assert [(one.step, one.is_promoted, one.gain, one.lower_bound) for one in page.verdicts] == [
        (2, False, None, None),
        (4, True, 0.25, 0.125),
    ]
    assert page.notices[0].startswith("before step 3 the trainer has forgotten")
    shown = read(page_of(page))
    for part in ("50 of 50 groups had no spread", "passed <b>", "+25.0%, ≥ +12.5% at 95%", "4 of 100"):
        assert part in shown.text
    assert "run-x" not in shown.text


async def test_episodes_of_a_training_run_are_shown_with_their_tokens(platform: Platform) -> None:
    page = await read_page(platform, "run-t", Asked(tokens=True))
    by_id = {one.row.episode_id: one for one in page.shown}
    whole = by_id["ep-0"]
    assert [token.text for token in whole.turns[0].tokens] == ["4", "2"]
    assert [(one.depth, one.name) for one in whole.grades] == [(0, "right"), (1, "exact")]
    assert "v1–v2" in whole.words
    assert "trained in step 1" in whole.words
    assert "its body was removed" in by_id["ep-1"].notice
    assert by_id["ep-2"].row.reward is None
    without = await read_page(platform, "run-t", Asked(tokens=False))
    assert all(not turn.tokens for one in without.shown for turn in one.turns)


async def test_an_evaluation_that_goes_on_has_no_report_yet(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "INDEX_WAIT_S", 0.1)
    page = await read_page(platform, "run-e", Asked())
    assert page.report is None
    assert [(one.task_slug, one.failure) for one in page.episodes] == [("a", ""), ("b", "pending")]
    assert "The evaluation is not over" in read(page_of(page)).text


async def test_what_does_not_answer_is_named_and_the_rest_is_shown(platform: Platform) -> None:
    peers = {
        **dict.fromkeys(platform.addresses.peers, NOWHERE),
        "tasksets": platform.addresses.peers["tasksets"],
    }
    async with Platform(Addresses(peers, "the test")) as lonely:
        page = await read_page(lonely, "run-t", Asked())
    assert page.header.run_id == "run-t"
    assert [notice.partition(":")[0] for notice in page.notices] == [
        "without episodes",
        "without the verdicts of the gate",
        "without the trainer's own measurements",
    ]
    assert page_of(page)


def test_settings_are_those_that_differ() -> None:
    spec = training("run-t").spec
    spec.sampling.temperature = 1.0
    spec.training.loss_config["clip_low"] = 0.3
    spec.gate.taskset = "judge"
    spec.group_size = 8
    found = {one.name: (one.value, one.default) for one in differing_settings(spec)}
    assert found == {
        "training.prompts_per_step": ("4", "16"),
        "training.loss_config": ("{'clip_low': 0.3}", "{}"),
        "gate.taskset": ("judge", "–"),
    }
    spec.purpose = 9  # type: ignore[assignment]
    assert differing_settings(spec) == ()
