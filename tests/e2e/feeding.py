"""What the tests of evaluations that train do and ask: runs to submit, facts and rows to read, refusals."""

import pytest
from tests.platform_recipes import MODEL, evaluation, small_training
from tests.support.waiting import until

from event_bus import EventBus
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD
from upcycle.api.registry.v1.registry_pb2 import Checkpoint
from upcycle.api.registry.v1.service_pb2 import GetCheckpointRequest, ListCheckpointsRequest
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, RUN_STATE_FAILED, Run, RunSpec
from upcycle.api.training.v1.events_pb2 import StepCompleted
from upcycle.api.trajectory.v1.service_pb2 import (
    GetLedgerRequest,
    GetLedgerResponse,
    ListTrajectoriesRequest,
    TrajectoryFilter,
)
from upcycle.api.trajectory.v1.trajectory_pb2 import LEDGER_STATE_TRAINED, TrajectorySummary
from upcycle.platform import Platform
from upcycle.rpc import RemoteNotFound, RemoteRefused
from upcycle.run_client import follow_run, submit_run
from upcycle.tasks import Taskset
from upcycle.wire import taskset_to_wire

TASKS, HELD = "sources-train", "sources-held_out"
NUM_TASKS, GROUP, PROMPTS = 16, 8, 4
RUN_LIMIT_S = 180.0


async def register(platform: Platform, taskset: Taskset) -> None:
    request = pb.RegisterTasksetRequest(taskset=taskset_to_wire(taskset))
    await platform.tasksets.RegisterTaskset(request, timeout=60)


async def evaluated(platform: Platform, taskset: str, *, group: int) -> Run:
    """A finished evaluation of head."""
    spec = evaluation(taskset=taskset, group=group)
    spec.policy.channel = CHANNEL_HEAD
    run = await submit_run(platform, spec)
    done = await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)
    assert done.state == RUN_STATE_COMPLETED, done.failure
    return done


def training_on(*source_runs: str, steps: int, prompts: int = PROMPTS, taskset: str = TASKS) -> RunSpec:
    """A training run whose first batches are these evaluations; its own groups would be of four."""
    spec = small_training(steps=steps, gate=False)
    spec.taskset = taskset
    spec.training.prompts_per_step = prompts
    spec.source_runs.extend(source_runs)
    return spec


async def ledger(platform: Platform, run_id: str) -> GetLedgerResponse:
    return await platform.trajectories.GetLedger(GetLedgerRequest(run_id=run_id), timeout=10)


async def trained(platform: Platform, run_id: str = "") -> list[TrajectorySummary]:
    """Every trained trajectory of a run, or of all."""
    wanted = TrajectoryFilter(run_id=run_id, model=MODEL, state=LEDGER_STATE_TRAINED)
    found: list[TrajectorySummary] = []
    token = ""
    while True:
        request = ListTrajectoriesRequest(filter=wanted, page_size=1000, page_token=token)
        page = await platform.trajectories.ListTrajectories(request, timeout=10)
        found += page.trajectories
        token = page.next_page_token
        if not token:
            return found


async def report(platform: Platform, run_id: str) -> pb.GetRunResponse:
    request = pb.GetRunRequest(run_id=run_id, include_results=True)
    return await platform.tasksets.GetRun(request, timeout=10)


async def steps_of(bus: EventBus, run_id: str) -> dict[int, StepCompleted]:
    """The run's steps until now. A step that is announced again, after a kill, is the same step."""
    steps: dict[int, StepCompleted] = {}
    for delivery in await bus.stored([StepCompleted], after_sequence=0, model=MODEL):
        step: StepCompleted = delivery.message
        if step.run_id == run_id:
            known = steps.setdefault(step.step, step)
            assert known.trajectory_ids == step.trajectory_ids
    return steps


async def final_checkpoint(platform: Platform, run_id: str, step: int) -> Checkpoint:
    """The run's checkpoint of its last step, once the registry has it, as GetCheckpoint tells it."""
    found: list[str] = []

    async def is_listed() -> bool:
        listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=10)
        own = [one for one in listed.checkpoints if (one.run_id, one.step) == (run_id, step)]
        found.extend(one.checkpoint_id for one in own)
        return bool(own)

    await until(is_listed, f"the checkpoint of step {step} of {run_id}", timeout_s=60.0)
    request = GetCheckpointRequest(checkpoint_id=found[0])
    return (await platform.registry.GetCheckpoint(request, timeout=10)).checkpoint


async def refused(platform: Platform, spec: RunSpec) -> str:
    """What SubmitRun says against it."""
    with pytest.raises((RemoteRefused, RemoteNotFound)) as refusal:
        await submit_run(platform, spec)
    return refusal.value.message


def most_mixed(before: pb.GetRunResponse, count: int) -> list[str]:
    """Slugs of the tasks that succeed about as often as they fail: a group of them has spread."""
    tries: dict[str, list[bool]] = {}
    for result in before.results:
        tries.setdefault(result.task_slug, []).append(result.success)
    return sorted(tries, key=lambda slug: (abs(sum(tries[slug]) / len(tries[slug]) - 0.5), slug))[:count]


def trainable(seed: int) -> RunSpec:
    """An evaluation whose groups a running training run may draw."""
    spec = evaluation(taskset=TASKS, group=GROUP, seed=seed)
    spec.trainable = True
    return spec


async def step_at_least(platform: Platform, run_id: str, step: int) -> None:
    """Wait until the planner has heard of a step."""

    async def is_there() -> bool:
        run = (await platform.tasksets.GetRun(pb.GetRunRequest(run_id=run_id), timeout=10)).run
        assert run.state != RUN_STATE_FAILED, run.failure
        return run.step >= step

    await until(is_there, f"step {step} of {run_id}", timeout_s=RUN_LIMIT_S)
