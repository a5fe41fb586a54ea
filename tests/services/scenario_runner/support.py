"""What tests do with a running scenario_runner: register, submit, play episodes as sampler and grader."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS

from event_bus import EventBus, EventRouter
from event_bus.topology import ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN
from identities import events as event_ids
from service_kit.groups import BusSettings
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import events_pb2, service_pb2, taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import trajectory_pb2

EVAL, TRAIN = common_pb2.PURPOSE_EVAL, common_pb2.PURPOSE_TRAIN


def arith(
    num_tasks: int = 3, name: str = "sums", split: Any = common_pb2.SPLIT_TRAIN, first: int = 0
) -> taskset_pb2.Taskset:
    """A taskset of the well-behaved environment: 1 + first, 1 + (first + 1), …"""
    path = str(ENVIRONMENTS / "arith.py")
    tasks = [
        taskset_pb2.Task(slug=f"t{n}", scenario="sum", args_json=json.dumps({"b": n, "a": 1}), family="small")
        for n in range(first, first + num_tasks)
    ]
    environment = taskset_pb2.EnvironmentSpec(name="arith", python=taskset_pb2.PythonSource(path=path))
    return taskset_pb2.Taskset(name=name, split=split, environment=environment, tasks=tasks)


def run_spec(
    purpose: Any = EVAL, group_size: int = 2, taskset: str = "sums", **fields: Any
) -> taskset_pb2.RunSpec:
    """A run of the known model."""
    policy = common_pb2.PolicySelector(model="incident")
    return taskset_pb2.RunSpec(
        taskset=taskset, purpose=purpose, policy=policy, group_size=group_size, **fields
    )


async def register(runner: Runner, taskset: taskset_pb2.Taskset) -> service_pb2.RegisterTasksetResponse:
    response: service_pb2.RegisterTasksetResponse = await runner.tasksets.RegisterTaskset(
        service_pb2.RegisterTasksetRequest(taskset=taskset)
    )
    return response


async def submit(runner: Runner, spec: taskset_pb2.RunSpec, request_id: str = "r1") -> taskset_pb2.Run:
    response = await runner.tasksets.SubmitRun(service_pb2.SubmitRunRequest(request_id=request_id, spec=spec))
    run: taskset_pb2.Run = response.run
    return run


async def get(runner: Runner, run_id: str) -> service_pb2.GetRunResponse:
    response: service_pb2.GetRunResponse = await runner.tasksets.GetRun(
        service_pb2.GetRunRequest(run_id=run_id, include_results=True)
    )
    return response


async def until(runner: Runner, run_id: str, reached: Callable[[Any], bool], timeout_s: float = 60) -> None:
    """Wait until the counts of a run are such."""
    async with asyncio.timeout(timeout_s):
        while not reached((await get(runner, run_id)).run.counts):
            await asyncio.sleep(0.05)


async def explain(runner: Runner, run_id: str) -> service_pb2.ExplainRunResponse:
    response: service_pb2.ExplainRunResponse = await runner.tasksets.ExplainRun(
        service_pb2.ExplainRunRequest(run_id=run_id)
    )
    return response


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def sampling(runner: Runner, play: Any) -> AsyncIterator[None]:
    """A sampler and grader in one: plays every episode of both pools by `play(request)`."""

    async def on_request(event: EpisodeRequested) -> None:
        try:
            await play(event)
        except grpc.aio.AioRpcError as error:
            # As the sampler does: the command of an episode that no run waits for is acknowledged.
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise

    bus = EventBus(BusSettings(url=runner.nats.url), client_name="sampler")
    router = EventRouter()
    queues = [router.queue(spec, slots=8) for spec in (ROLLOUT_SAMPLER_EVAL, ROLLOUT_SAMPLER_TRAIN)]
    for queue in queues:
        queue(on_request)
    bus.include_router(router)
    await bus.start()
    for queue in queues:
        queue.follow(runner.registry.models)
    try:
        yield
    finally:
        await bus.stop()


async def play_to_grade(runner: Runner, request: Any) -> float:
    """One episode through EnvironmentService, and its trajectory.graded."""
    opened = await runner.environments.Open(env_pb2.OpenRequest(episode_id=request.episode.episode_id))
    question = opened.prompt[-1].content
    a, b = question.removesuffix("?").split("+")
    called = await runner.environments.CallTool(
        env_pb2.CallToolRequest(
            lease_id=opened.lease_id,
            call_id="c1",
            name="add",
            arguments_json=json.dumps({"a": int(a), "b": int(b)}),
        )
    )
    answer = str(json.loads(called.content)["sum"]) if request.episode.member == 0 else "no idea"
    call = trajectory_pb2.ToolCall(call_id="c1", name="add", arguments_json="{}")
    result = trajectory_pb2.ToolResult(call_id="c1", content=called.content)
    body = trajectory_pb2.TrajectoryBody(
        episode=request.episode,
        answer=answer,
        turns=[trajectory_pb2.Turn(tool_calls=[call], tool_results=[result])],
    )
    grade = await runner.environments.Grade(
        env_pb2.GradeRequest(lease_id=opened.lease_id, body=await runner.store(body))
    )
    await runner.environments.Close(env_pb2.CloseRequest(lease_id=opened.lease_id))
    await announce_graded(runner, request, grade.reward, grade.success)
    return float(grade.reward)


async def announce_graded(runner: Runner, request: Any, reward: float, success: bool, **fields: Any) -> None:
    event = trajectory_events.TrajectoryGraded(
        episode=request.episode,
        reward=reward,
        success=success,
        **{"num_turns": 2, "sampled_by": common_pb2.VersionSpan(oldest=1, newest=2), **fields},
    )
    await _publish_outcome(runner, request, event)


async def announce_failed(runner: Runner, request: Any, kind: str = "engine_error") -> None:
    event = events_pb2.EpisodeFailed(episode=request.episode, kind=kind, detail="as the test wants")
    await _publish_outcome(runner, request, event)


async def _publish_outcome(runner: Runner, request: Any, event: Any) -> None:
    event_id = event_ids.episode_outcome(request.episode.episode_id)
    await runner.bus.publish(event, model=request.episode.model, event_id=event_id)


async def finished(runner: Runner, run_id: str, timeout_s: float = 60) -> service_pb2.GetRunResponse:
    """Watch a run to its end; the equation of its counts must hold in every message."""
    async with asyncio.timeout(timeout_s):
        async for update in runner.tasksets.WatchRun(service_pb2.WatchRunRequest(run_id=run_id)):
            counts = update.run.counts
            assert counts.requested == counts.settled + counts.in_flight
            assert counts.requested == sum(counts.by_state.values())
    return await get(runner, run_id)
