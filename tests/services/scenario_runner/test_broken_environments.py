"""Runs of environments that fail, through the real service: whose failure it was decides what the run makes
of it.
"""

import grpc.aio
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS
from tests.services.scenario_runner.support import (
    announce_failed,
    announce_graded,
    finished,
    register,
    run_spec,
    sampling,
    submit,
)

from episodes import EpisodeFailure
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.evaluation import runs_of
from upcycle.results import coverage_of
from upcycle.rpc.errors import failure_kind


def tasks(*scenarios: str) -> taskset_pb2.Taskset:
    """One task per scenario of the environment that fails in every way."""
    source = taskset_pb2.PythonSource(path=str(ENVIRONMENTS / "blame.py"))
    return taskset_pb2.Taskset(
        name="blame",
        split=common_pb2.SPLIT_HELD_OUT,
        environment=taskset_pb2.EnvironmentSpec(name="blame", python=source),
        tasks=[
            taskset_pb2.Task(slug=f"{name}-{index}", scenario=name, args_json="{}")
            for index, name in enumerate(scenarios)
        ],
    )


class Player:
    """Plays every episode with one answer, and publishes what the runner makes of it."""

    def __init__(self, runner: Runner, answer: str) -> None:
        self.runner = runner
        self.answer = answer
        self.num_played = 0

    async def __call__(self, request: EpisodeRequested) -> None:
        self.num_played += 1
        environments = self.runner.environments
        opened = await environments.Open(env_pb2.OpenRequest(episode_id=request.episode.episode_id))
        body = await self.runner.store(TrajectoryBody(episode=request.episode, answer=self.answer))
        try:
            grade = await environments.Grade(env_pb2.GradeRequest(lease_id=opened.lease_id, body=body))
        except grpc.aio.AioRpcError as error:
            await announce_failed(self.runner, request, failure_kind(error) or "none")
        else:
            failure = grade.failure if grade.HasField("failure") else None
            await announce_graded(self.runner, request, grade.reward, grade.success, failure=failure)


async def test_an_environment_that_fails_on_every_answer_fails_its_run_by_name(runner: Runner) -> None:
    await register(runner, tasks("needs_json", "needs_json"))
    run = await submit(runner, run_spec(group_size=1, taskset="blame"))
    player = Player(runner, "no json")
    async with sampling(runner, player):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_FAILED
    assert done.run.failure.startswith("environment_broken: every episode fails, whatever is answered")
    assert len(done.run.failure.splitlines()) == 1, "the traceback stands with the episode"
    assert player.num_played == 2
    assert coverage_of(runs_of(done)).missing == {EpisodeFailure.ENVIRONMENT_BROKEN: 2}


async def test_answers_that_break_their_scenario_are_zeros_and_nothing_is_missing(runner: Runner) -> None:
    await register(runner, tasks("parses", "parses", "misbehaves"))
    run = await submit(runner, run_spec(group_size=1, taskset="blame"))
    player = Player(runner, "no json")
    async with sampling(runner, player):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    assert player.num_played == 3  # the first attempt counts
    coverage = coverage_of(runs_of(done))
    assert str(coverage) == "graded 3 of 3 tasks; 2 failed by the policy, reward 0: answer_error"
    assert sorted(one.reward for one in runs_of(done)) == [0.0, 0.0, 0.5]
