"""A run that plays against itself on the running service: real bus, real database, environments in
processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet
from tests.services.scenario_runner.support import (
    TRAIN,
    announce_graded,
    explain,
    get,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)

from event_bus import Delivery
from scenario_runner.domain.environments import PythonEnvironment, TaskOrder
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested, GroupOffered
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import trajectory_pb2

SELF_PLAY = PythonEnvironment("self_play", str(ENVIRONMENTS / "self_play.py"))


def hiding(*scenarios: str) -> taskset_pb2.Taskset:
    source = taskset_pb2.PythonSource(path=SELF_PLAY.path)
    environment = taskset_pb2.EnvironmentSpec(name=SELF_PLAY.name, python=source)
    tasks = [
        taskset_pb2.Task(slug=name, scenario=name, args_json='{"number":1}' if name == "find" else "{}")
        for name in scenarios
    ]
    return taskset_pb2.Taskset(
        name="hidden", split=common_pb2.SPLIT_TRAIN, environment=environment, tasks=tasks
    )


def self_play_run(self_play: str = "hide:find", **training: Any) -> taskset_pb2.RunSpec:
    chosen = {"self_play": self_play, "prompts_per_step": 2, "max_staleness": 1, "steps": 0}
    config = taskset_pb2.TrainingConfig(**{**chosen, **training})
    return run_spec(TRAIN, 2, taskset="hidden", training=config)


async def test_a_process_reads_the_proposal(fleet: Fleet) -> None:
    order = TaskOrder(SELF_PLAY, "find", 1, "{}", solved=True, proposal={"answer": "3", "trajectory": {}})
    made = await fleet.hosts.generate(order)
    assert (made.arguments, set(made.schema["properties"])) == (
        {"number": 3, "below": 9},
        {"number", "below"},
    )
    assert (await fleet.hosts.describe(SELF_PLAY)).proposers == {"find": "hide"}


async def test_a_run_that_cannot_play_against_itself_is_refused_at_submit(runner: Runner) -> None:
    await register(runner, hiding("hide", "find"))
    error = await refusal(submit(runner, self_play_run("hide:alone")))
    assert error.details() == (
        "spec.training.self_play is 'hide:alone', and environment 'self_play' declares hide:find: write "
        "@alone.proposed_by(hide) in its file, or leave the option out"
    )
    error = await refusal(submit(runner, self_play_run("alone:find")))
    assert "no taskset of the run has a task of that scenario" in str(error.details())
    error = await refusal(submit(runner, self_play_run(self_play="", advantage="hierarchical")))
    assert "spec.training.self_play is empty" in str(error.details())


class Trainer:
    """Grades what the environments grade, stores each answer, and settles every group of solvers."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.answers: dict[str, str] = {}
        self.purposes: Counter[tuple[str, int]] = Counter()
        self._graded: dict[str, list[str]] = {}

    async def play(self, request: EpisodeRequested) -> None:
        """A proposer's member n hides n + 1; of solvers the first finds what was hidden."""
        episode, environments = request.episode, self.runner.environments
        opened = await environments.Open(env_pb2.OpenRequest(episode_id=episode.episode_id))
        proposes = opened.prompt[-1].content.startswith("Hide")
        self.purposes["hide" if proposes else "find", episode.purpose] += 1
        answer = str(episode.member + 1) if proposes else self._found(episode)
        body = trajectory_pb2.TrajectoryBody(episode=episode, answer=answer)
        ref = await self.runner.store(body)
        grade = await environments.Grade(env_pb2.GradeRequest(lease_id=opened.lease_id, body=ref))
        await environments.Close(env_pb2.CloseRequest(lease_id=opened.lease_id))
        self.answers[episode.episode_id] = answer
        await announce_graded(self.runner, request, grade.reward, grade.success, body=ref)
        if not proposes:
            await self._settle(episode)

    def _found(self, episode: Any) -> str:
        """The second member always guesses 2."""
        return "1" if episode.member == 0 else "2"

    async def _settle(self, episode: Any) -> None:
        members = self._graded.setdefault(episode.group_id, [])
        members.append(episode.episode_id)
        if len(members) == episode.group_size:
            fact = training_events.GroupSettled(
                group_id=episode.group_id,
                run_id=episode.run_id,
                model="incident",
                outcome="excluded",
                reason="stale",
                episode_ids=members,
            )
            event_id = f"group.settled/{episode.group_id}"
            await self.runner.bus.publish(fact, model="incident", event_id=event_id, author="trainer")


async def test_a_run_proposes_plays_and_pays_on_the_running_service(runner: Runner) -> None:
    """Both members of a proposer's group hide a number, one of each group of solvers finds it: each proposal
    has a pass rate of a half and is paid 0.1."""
    trainer = Trainer(runner)
    await register(runner, hiding("hide"))
    async with sampling(runner, trainer.play):
        run_id = (await submit(runner, self_play_run())).run_id
        async with asyncio.timeout(60):
            while not (offers := await offered(runner)):
                await asyncio.sleep(0.1)
    first = offers[0]
    assert (first.run_id, first.source_run_id, first.split) == (run_id, run_id, common_pb2.SPLIT_TRAIN)
    assert {round(member.reward, 9) for member in first.members} == {0.1}
    assert all(member.body.key for member in first.members)
    assert set(trainer.purposes) == {("hide", common_pb2.PURPOSE_EVAL), ("find", common_pb2.PURPOSE_TRAIN)}
    run = (await get(runner, run_id)).run
    proposed = [row for row in run.new_tasks.newest if row.state == "retired"]
    assert {row.detail for row in proposed} == {"1 of 2 solved it"}
    assert {trainer.answers[row.proposed_by] for row in proposed} <= {"1", "2"}
    assert run.new_tasks.success_rate == 0.5
    assert "groups are on new tasks" in (await explain(runner, run_id)).summary
    assert run.counts.requested == run.counts.settled + run.counts.in_flight


async def offered(runner: Runner) -> list[GroupOffered]:
    """What the stream holds of offers."""
    stored: list[Delivery[Any]] = list(
        await runner.bus.stored([GroupOffered], after_sequence=0, model="incident")
    )
    return [delivery.message for delivery in stored]
