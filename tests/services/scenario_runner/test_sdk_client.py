"""The SDK as a client of the running service: the code of the guides, with `upcycle` as the package."""

import inspect
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import play_to_grade, sampling

import upcycle
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle import evaluation
from upcycle.agents import create_agent
from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.environment import load_environment
from upcycle.errors import UpcycleError
from upcycle.eval import EvaluationFailed, Job
from upcycle.platform import Addresses, Platform
from upcycle.rpc import RemoteConflict, RemoteNotFound, RemoteRefused
from upcycle.run_client import RegisteredTaskset, register_taskset
from upcycle.run_config import MAX_EPISODE_DEADLINE_S
from upcycle.run_config.refusing import RunConfigInvalid
from upcycle.tasks import Task, Taskset


class Bodies(TrajectoryServiceServicer):
    """Answers with a two-turn trajectory, the first time with "not yet"."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    async def GetTrajectory(self, request: Any, context: Any) -> service_pb2.GetTrajectoryResponse:
        if request.trajectory_id not in self.asked:
            self.asked.add(request.trajectory_id)
            await context.abort(grpc.StatusCode.NOT_FOUND, "not indexed yet")
        call = trajectory_pb2.ToolCall(call_id="c", name="add", arguments_json='{"a": 1}')
        result = trajectory_pb2.ToolResult(call_id="c", content="3")
        turns = [
            trajectory_pb2.Turn(text="let me add", tool_calls=[call], tool_results=[result]),
            trajectory_pb2.Turn(text="3"),
        ]
        body = trajectory_pb2.TrajectoryBody(turns=turns, answer="3")
        return service_pb2.GetTrajectoryResponse(body=body)


@pytest.fixture
async def platform(runner: Runner) -> AsyncIterator[Addresses]:
    """Addresses of a platform with a runner, a sampler and a store."""
    # Only the method that the SDK calls; the generated base answers UNIMPLEMENTED to the others.
    store = Bodies()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_TrajectoryServiceServicer_to_server, store)
    await server.start()
    absent = "127.0.0.1:1"
    peers = {
        "tasksets": runner.address,
        "trajectories": server.address,
        "training": absent,
        "registry": absent,
    }
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        yield Addresses({**peers, "environments": runner.address, "gateway": absent}, "test")
    await server.stop()


def sums(*pairs: tuple[int, int]) -> list[Task]:
    env = load_environment(ENVIRONMENTS / "arith.py")
    return [env.scenarios["sum"].task(a=a, b=b, slug=f"{a}+{b}") for a, b in pairs]


async def test_one_task_is_evaluated_as_in_the_guides(platform: Addresses) -> None:
    agent = create_agent("incident")
    async with upcycle.eval(sums((1, 2))[0], runtime=platform) as ctx:
        result = await agent.run(ctx)
    assert (result.reward, result.success, result.is_error) == (1.0, True, False)
    assert ctx.reward == 1.0
    assert result.trajectory is not None
    assert [turn.text for turn in result.trajectory.turns] == ["let me add", "3"]
    assert result.trajectory.tool_calls[0].arguments == {"a": 1}
    assert result.answer == "3"
    assert result.trace_id == f"traj-{result.episode_id}"
    assert result.episode_id.startswith(f"{result.run_id}-g")


async def test_a_taskset_in_a_job_with_groups(platform: Addresses) -> None:
    taskset = Taskset("my-sums", sums((2, 2), (1, 5)))
    agent = create_agent("incident", completion_kwargs={"extra_body": {"return_token_ids": True}})
    session = await Job.start("incident", group=2)
    for _ in range(2):
        start = len(session.runs)
        await taskset.run(agent, runtime=platform, job=session)
        batch = session.runs[start:]
        assert [(run.task_slug, run.reward) for run in batch] == [
            ("2+2", 1.0),
            ("2+2", 0.25),
            ("1+5", 1.0),
            ("1+5", 0.25),
        ]
    assert len(session.run_ids) == 2  # one evaluation after the other
    assert [run.run_id for run in session.runs] == [session.run_ids[0]] * 4 + [session.run_ids[1]] * 4
    other = Taskset("my-sums", sums((7, 7)))  # the name is known: a new revision
    assert [run.task_slug for run in await other.run(agent, runtime=platform)] == ["7+7"]


async def test_names_and_sides_are_kept(platform: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = create_agent("incident")
    await Taskset("mine", sums((1, 1))).run(agent, runtime=platform)
    with pytest.raises(RemoteConflict, match=r"is registered with split train.*choose another name"):
        await Taskset("mine", sums((1, 2)), split="held_out").run(agent, runtime=platform)
    with pytest.raises(
        RemoteRefused, match=r"task '1\+1' of taskset 'judge' .held_out. is training data already"
    ):
        await Taskset("judge", sums((1, 1)), split="held_out").run(agent, runtime=platform)
    bare = sums((1, 1), (5, 5))  # evaluated with any other tasks, and on no side because of it
    async with upcycle.eval(bare, runtime=platform) as ctx:
        await agent.run(ctx)
    await Taskset("judge", sums((5, 5)), split="held_out").run(agent, runtime=platform)

    async def overtaken(client: Platform, taskset: Taskset) -> RegisteredTaskset:
        registered = await register_taskset(client, taskset)
        await register_taskset(client, Taskset(taskset.name, sums((8, 8))))
        return registered

    monkeypatch.setattr(evaluation, "register_taskset", overtaken)
    (run,) = await Taskset("mine", sums((1, 1))).run(agent, runtime=platform)
    assert run.task_slug == "1+1"  # not what another client registered meanwhile


async def test_refusals_reach_the_caller(platform: Addresses) -> None:
    with pytest.raises(RemoteNotFound, match="no model 'nobody'"):
        await Taskset("s", sums((1, 1))).run(create_agent("nobody"), runtime=platform)
    async with upcycle.eval(sums((1, 1)), runtime=platform) as ctx:
        with pytest.raises(EvaluationFailed, match="no episode was graded"):
            assert ctx.reward
    with pytest.raises(UpcycleError, match="unknown sampling field 'temprature'"):
        create_agent("incident", temprature=1.0)
    with pytest.raises(UpcycleError, match="names a version"):
        create_agent("incident@vtwo")


def test_an_agent_can_pin_a_version_and_a_way_of_sampling() -> None:
    agent = create_agent(
        "incident@v12", completion_kwargs={"max_tokens": 64, "temperature": 0.5}, max_turns=3
    )
    spec = evaluation.spec_of(agent, "ts", 4, label="label")
    assert (spec.policy.model, spec.policy.pinned_version, spec.group_size) == ("incident", 12, 4)
    assert spec.episode_deadline_s == 120
    sampled = spec.sampling
    assert (sampled.temperature, sampled.max_tokens_per_turn, sampled.max_turns) == (0.5, 64, 3)


async def test_an_evaluation_in_python_gives_its_episodes_the_time_that_is_asked_for(
    platform: Addresses,
) -> None:
    agent = create_agent("incident")
    taskset = Taskset("long-sums", sums((3, 4)))
    (by_taskset,) = await taskset.run(agent, runtime=platform, episode_deadline_s=4 * 3600)
    async with upcycle.eval(taskset, runtime=platform, episode_deadline_s=7200) as ctx:
        by_context = await agent.run(ctx)
    async with Platform(platform) as client:
        requests = [GetRunRequest(run_id=run.run_id) for run in (by_taskset, by_context)]
        found = [(await client.tasksets.GetRun(request)).run for request in requests]
    assert [run.spec.episode_deadline_s for run in found] == [4 * 3600, 7200]
    with pytest.raises(RunConfigInvalid, match="episode_deadline_s must be >= 1"):
        await taskset.run(agent, runtime=platform, episode_deadline_s=0)


def test_no_default_ends_the_wait_for_an_episode_of_hours() -> None:
    waits = inspect.signature(evaluation.evaluate).parameters["timeout_s"].default
    assert waits >= MAX_EPISODE_DEADLINE_S
