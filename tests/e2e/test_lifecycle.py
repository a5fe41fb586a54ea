"""A training run from its user's side, on real processes: paused over restarts, resumed, stopped early; and
SFT on what it sampled."""

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio
import pytest
from tests.e2e.test_loop import assert_conserved, balanced
from tests.platform_recipes import HELD_OUT_TASKSET, MODEL, TRAIN_TASKSET, evaluation, small_training

from identities.entities import interactive_run_id
from local_stack.stack import Stack
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD, PolicySelector
from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_HELD, CHECKPOINT_STATE_PROMOTED, Checkpoint
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListCheckpointsRequest
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, RUN_STATE_PAUSED, RUN_STATE_RUNNING, Run
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.api.training.v1.training_pb2 import SESSION_STATE_WAITING
from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.cli.run_follower import Event, Stepped, TrainingProgress, follow_training
from upcycle.cli.sft import successes
from upcycle.cli.sft_steps import SftPlan, run_plan
from upcycle.platform import Platform
from upcycle.run_client import submit_run
from upcycle.train import TrainingClient

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(400)]


async def run_of(platform: Platform, run_id: str) -> Run:
    return (await platform.tasksets.GetRun(pb.GetRunRequest(run_id=run_id), timeout=10)).run


async def until(
    platform: Platform, run_id: str, holds: Callable[[Run], bool], *, limit_s: float = 180
) -> Run:
    async with asyncio.timeout(limit_s):
        while not holds(run := await run_of(platform, run_id)):
            await asyncio.sleep(0.2)
    return run


async def quiet(platform: Platform, run_id: str) -> Run:
    """Once nothing is being played, the trainer waits, and neither a step nor an episode has moved for a few
    seconds."""
    last, still = None, 0
    async with asyncio.timeout(180):
        while still < 15:
            run = await run_of(platform, run_id)
            now = (run.step, run.counts.requested, run.counts.settled, run.counts.by_state["planned"])
            is_quiet = now == last and not now[-1] and await trainer_waits(platform, run)
            last, still = now, still + 1 if is_quiet else 0
            await asyncio.sleep(0.2)
    return run


async def trainer_waits(platform: Platform, run: Run) -> bool:
    """Whether the trainer has taken the run's last step and begun no other one."""
    try:
        asked = GetSessionRequest(run_id=run.run_id)
        session = (await platform.training.GetSession(asked, timeout=10)).session
    except grpc.aio.AioRpcError:  # it was killed just now, and has not read of the run again
        return False
    return session.state == SESSION_STATE_WAITING and session.step == run.step


async def verdict(platform: Platform, run_id: str) -> Checkpoint:
    """Of the run's newest checkpoint."""
    async with asyncio.timeout(120):
        while True:
            request = ListCheckpointsRequest(model=MODEL)
            listed = (await platform.registry.ListCheckpoints(request, timeout=10)).checkpoints
            own = [one for one in listed if one.run_id == run_id]
            if own and own[-1].state in (CHECKPOINT_STATE_PROMOTED, CHECKPOINT_STATE_HELD):
                return own[-1]
            await asyncio.sleep(0.3)


async def test_a_run_is_paused_over_restarts_resumed_and_stopped_early(
    stack: Stack, platform: Platform
) -> None:
    spec = small_training(steps=500)
    spec.training.checkpoint_every_steps, spec.training.prompts_per_step = 500, 4
    run_id = (await submit_run(platform, spec)).run_id
    await until(platform, run_id, lambda run: run.step >= 1)

    await platform.tasksets.PauseRun(pb.PauseRunRequest(run_id=run_id), timeout=10)
    paused = await quiet(platform, run_id)
    assert (paused.state, paused.counts.by_state["planned"]) == (RUN_STATE_PAUSED, 0)
    why = await platform.tasksets.ExplainRun(pb.ExplainRunRequest(run_id=run_id), timeout=10)
    assert "is paused" in why.summary
    for victim in ("scenario_runner", "grpo_trainer"):
        await stack.kill(victim)
        await stack.wait_ready(victim, timeout_s=60)
    still = await quiet(platform, run_id)
    assert (still.state, still.step, still.counts.requested) == (
        RUN_STATE_PAUSED,
        paused.step,
        paused.counts.requested,
    )

    resumed = (await platform.tasksets.ResumeRun(pb.ResumeRunRequest(run_id=run_id), timeout=10)).run
    assert resumed.state == RUN_STATE_RUNNING
    await until(platform, run_id, lambda run: run.step >= paused.step + 2)

    done = await stopped(platform, run_id)
    assert paused.step + 2 <= done.step < 500


async def stopped(platform: Platform, run_id: str) -> Run:
    """The run after it was asked to stop, with everything that must hold then."""
    steps: list[int] = []

    def show(progress: TrainingProgress, event: Event) -> None:
        if isinstance(event, Stepped):
            steps.append(event.point.step)

    await platform.tasksets.StopRun(pb.StopRunRequest(run_id=run_id, reason="enough"), timeout=10)
    done = await follow_training(platform, run_id, show, timeout_s=120)
    assert (done.state, done.failure) == (RUN_STATE_COMPLETED, "")
    assert steps[-1] == done.step
    assert_conserved(await balanced(platform, run_id))
    session = (await platform.training.GetSession(GetSessionRequest(run_id=run_id), timeout=10)).session
    judged = await verdict(platform, run_id)
    assert judged.step == session.step == done.step
    assert judged.HasField("gate")
    return done


async def test_what_succeeded_is_cloned_and_judged_by_the_gate_of_the_model(platform: Platform) -> None:
    spec = evaluation(taskset=TRAIN_TASKSET)
    spec.policy.CopyFrom(PolicySelector(model=MODEL, channel=CHANNEL_HEAD))
    sampled = await submit_run(platform, spec)
    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=sampled.run_id), page_size=1000)
    listed: Sequence[TrajectorySummary] = ()
    async with asyncio.timeout(120):
        while sum(one.graded and one.success for one in listed) < 16:
            await asyncio.sleep(0.5)
            listed = (await platform.trajectories.ListTrajectories(request, timeout=10)).trajectories
    await platform.tasksets.CancelRun(pb.CancelRunRequest(run_id=sampled.run_id), timeout=10)
    chosen = [one.episode.trajectory_id for one in successes(listed, sampled.run_id)][:16]
    plan = SftPlan(sampled.run_id, (tuple(chosen[:8]), tuple(chosen[8:]), tuple(chosen)))
    losses: list[float] = []
    last = await run_plan(
        TrainingClient(MODEL, runtime=platform),
        plan,
        1e-3,
        lambda number, result: losses.append(result.metrics["loss"]),
    )
    assert len(losses) == 3
    assert losses[-1] < max(losses[:2])
    model = (await platform.registry.GetModel(GetModelRequest(model=MODEL), timeout=10)).model
    assert model.gate_taskset.partition("@")[0] == HELD_OUT_TASKSET  # a run before asked for it
    assert not last.is_head
    judged = await verdict(platform, interactive_run_id(MODEL))
    assert (judged.version, judged.HasField("gate")) == (last.version, True)
