"""The running service from outside: gRPC in, NATS out, real processes in between."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.facts import newest
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.support import (
    TRAIN,
    announce_failed,
    arith,
    explain,
    finished,
    get,
    play_to_grade,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
    until,
)
from tests.support import waiting

from identities.entities import trajectory_id
from scenario_runner.telemetry import EPISODES_IN_FLIGHT
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as env_pb2
from upcycle.api.registry.v1 import registry_pb2
from upcycle.api.taskset.v1 import events_pb2, service_pb2, taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events


async def test_an_evaluation_from_submit_to_finish(runner: Runner) -> None:
    registered = await register(runner, arith())
    assert (registered.num_tasks, registered.created, len(registered.digest)) == (3, True, 64)
    run = await submit(runner, run_spec(group_size=2))
    await waiting.until(lambda: run.run_id in _runs_measured())
    assert run.state == taskset_pb2.RUN_STATE_RUNNING
    assert len(run.trace_id) == 32
    assert run.spec.sampling.max_turns == 8

    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        done = await finished(runner, run.run_id)

    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    assert dict(done.run.counts.by_state) == {"evaluated": 6}
    await waiting.until(lambda: run.run_id not in _runs_measured())
    assert [(row.task_slug, row.member, row.reward, row.success) for row in done.results] == [
        (f"t{task}", member, 1.0 if member == 0 else 0.25, member == 0)
        for task in _order(done)
        for member in (0, 1)
    ]
    assert done.run.reward_mean == pytest.approx(0.625)
    assert done.run.success_rate == pytest.approx(0.5)
    fact = await newest(runner.bus, events_pb2.RunFinished, model="incident")
    assert fact is not None
    assert fact.message.run_id == run.run_id
    assert fact.message.counts.settled == 6


def _runs_measured() -> set[str]:
    (family,) = EPISODES_IN_FLIGHT.collect()
    return {sample.labels["run_id"] for sample in family.samples}


async def test_a_failed_member_is_played_again_and_then_given_up(runner: Runner) -> None:
    await register(runner, arith(1))
    attempts: list[str] = []

    async def play(request: Any) -> None:
        attempts.append(request.episode.episode_id)
        if request.episode.member == 0 or request.attempt == 0:
            await announce_failed(runner, request)
        else:
            await play_to_grade(runner, request)

    run = await submit(runner, run_spec(group_size=2))
    async with sampling(runner, play):
        done = await finished(runner, run.run_id)
    group = f"{run.run_id}-g00000"
    assert sorted(attempts) == [f"{group}-e000-a{n}" for n in range(3)] + [
        f"{group}-e001-a{n}" for n in range(2)
    ]
    assert dict(done.run.counts.by_state) == {"failed": 4, "evaluated": 1}
    statuses = [(row.status, row.failure_kind) for row in done.results]
    assert statuses == [
        (taskset_pb2.EPISODE_STATUS_FAILED, "engine_error"),
        (taskset_pb2.EPISODE_STATUS_GRADED, ""),
    ]
    shortened = await newest(runner.bus, events_pb2.GroupShortened, model="incident")
    assert shortened is not None
    assert (shortened.message.group_id, shortened.message.expected_members) == (group, 1)


async def test_a_training_run_keeps_to_its_open_groups_and_ends_at_its_last_step(runner: Runner) -> None:
    await register(runner, arith(3))
    training = taskset_pb2.TrainingConfig(steps=2, prompts_per_step=2, max_staleness=1)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))
    trainer = FakeTrainer(runner, run.run_id, steps=2, prompts_per_step=2)

    async def play(request: Any) -> None:
        await play_to_grade(runner, request)
        await trainer.on_graded(request)

    async with sampling(runner, play):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_COMPLETED
    assert trainer.most_open <= 4
    assert done.run.counts.by_state["trained"] == 8
    assert done.run.counts.in_flight == 0
    assert done.run.policy_version == 2


class FakeTrainer:
    """Settles complete groups a batch at a time, as grpo_trainer would; after its last step, whatever is
    left.
    """

    def __init__(self, runner: Runner, run_id: str, *, steps: int, prompts_per_step: int) -> None:
        self.runner = runner
        self.run_id = run_id
        self.steps = steps
        self.prompts = prompts_per_step
        self.groups: dict[str, list[str]] = {}
        self.step = 0
        self.most_open = 0
        self._one_at_a_time = asyncio.Lock()

    async def on_graded(self, request: Any) -> None:
        async with self._one_at_a_time:
            self.groups.setdefault(request.episode.group_id, []).append(request.episode.episode_id)
            counts = (await get(self.runner, self.run_id)).run.counts
            self.most_open = max(self.most_open, counts.groups_open)
            complete = [
                name for name, members in self.groups.items() if len(members) == request.episode.group_size
            ]
            if self.step < self.steps and len(complete) >= self.prompts:
                await self._train(complete[: self.prompts])
            if self.step == self.steps:
                for group_id in list(self.groups):
                    await self._settle(group_id, "excluded", "run_over")

    async def _train(self, batch: list[str]) -> None:
        self.step += 1
        trained = [trajectory_id(episode) for group_id in batch for episode in self.groups[group_id]]
        for group_id in batch:
            await self._settle(group_id, "trained", "")
        stepped = training_events.StepCompleted(
            run_id=self.run_id, model="incident", step=self.step, version=self.step, trajectory_ids=trained
        )
        event_id = f"step.completed/{self.run_id}/{self.step}"
        await self.runner.bus.publish(stepped, model="incident", event_id=event_id)

    async def _settle(self, group_id: str, outcome: str, reason: str) -> None:
        settled = training_events.GroupSettled(
            group_id=group_id,
            run_id=self.run_id,
            model="incident",
            outcome=outcome,
            reason=reason,
            step=self.step,
            episode_ids=self.groups.pop(group_id),
        )
        await self.runner.bus.publish(
            settled, model="incident", event_id=f"group.settled/{group_id}", author="trainer"
        )


async def test_a_training_run_that_can_only_fail_ends_and_says_why(runner: Runner) -> None:
    await register(runner, arith(1))
    training = taskset_pb2.TrainingConfig(steps=5, prompts_per_step=1, max_staleness=0)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))
    async with sampling(runner, lambda request: announce_failed(runner, request, "scenario_error")):
        done = await finished(runner, run.run_id)
    assert done.run.state == taskset_pb2.RUN_STATE_FAILED
    assert "scenario_error: as the test wants" in done.run.failure
    why = await explain(runner, run.run_id)
    assert "scenario_error" in why.summary


async def test_a_cancelled_run_settles_everything(runner: Runner) -> None:
    await register(runner, arith(3))
    run = await submit(runner, run_spec(group_size=2))
    await until(runner, run.run_id, lambda counts: counts.requested == 6)
    request = service_pb2.CancelRunRequest(run_id=run.run_id, reason="enough seen")
    cancelled = (await runner.tasksets.CancelRun(request)).run
    assert cancelled.state == taskset_pb2.RUN_STATE_CANCELLED
    assert dict(cancelled.counts.by_state) == {"cancelled": 6}
    assert cancelled.failure == "enough seen"
    episode_id = f"{run.run_id}-g00000-e000-a0"
    error = await refusal(runner.environments.Open(env_pb2.OpenRequest(episode_id=episode_id)))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert (await runner.tasksets.CancelRun(request)).run.state == taskset_pb2.RUN_STATE_CANCELLED


async def test_the_same_request_is_the_same_run_also_after_a_restart(start_runner: Start) -> None:
    first = await start_runner()
    await register(first, arith())
    run = await submit(first, run_spec())
    assert (await submit(first, run_spec())).run_id == run.run_id
    error = await refusal(submit(first, run_spec(group_size=3)))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    await first.service.stop()
    second = await start_runner()
    assert (await submit(second, run_spec())).run_id == run.run_id
    async with sampling(second, lambda request: play_to_grade(second, request)):
        done = await finished(second, run.run_id)
    assert dict(done.run.counts.by_state) == {"evaluated": 6}


async def test_an_overdue_episode_fails_by_name_and_is_played_again(runner: Runner) -> None:
    await register(runner, arith(1))
    run = await submit(runner, run_spec(group_size=1, episode_deadline_s=1))

    async def play(request: Any) -> None:
        if request.attempt == 0:
            await runner.environments.Open(env_pb2.OpenRequest(episode_id=request.episode.episode_id))
        else:
            await play_to_grade(runner, request)

    async with sampling(runner, play):
        done = await finished(runner, run.run_id)
    assert dict(done.run.counts.by_state) == {"failed": 1, "evaluated": 1}
    failed = await newest(runner.bus, events_pb2.EpisodeFailed, model="incident")
    assert failed is not None
    assert (failed.message.kind, failed.message.reported_by) == ("timeout", "scenario_runner")


async def test_a_command_that_was_lost_is_dispatched_again(runner: Runner) -> None:
    await register(runner, arith(1))
    run = await submit(runner, run_spec(group_size=1, episode_deadline_s=1))
    seen: list[str] = []

    async def play(request: Any) -> None:
        seen.append(request.episode.episode_id)
        if len(seen) > 1:  # the first time the sampler forgets it
            await play_to_grade(runner, request)

    async with sampling(runner, play):
        done = await finished(runner, run.run_id)
    assert seen == [f"{run.run_id}-g00000-e000-a0"] * 2
    assert dict(done.run.counts.by_state) == {"evaluated": 1}


def _order(done: service_pb2.GetRunResponse) -> list[int]:
    slugs = list(dict.fromkeys(row.task_slug for row in done.results))
    assert sorted(slugs) == ["t0", "t1", "t2"]
    return [int(slug[1:]) for slug in slugs]


async def test_why_names_a_missing_engine_a_missing_grader_and_a_missing_bus(runner: Runner) -> None:
    await register(runner, arith())
    run = await submit(runner, run_spec())
    await until(runner, run.run_id, lambda counts: counts.requested == 6)
    why = await explain(runner, run.run_id)
    assert [(one.owner, one.episodes) for one in why.waiting_for] == [("policy_engine", 6)]
    assert "no engine serves incident on channel latest" in why.summary

    lease = registry_pb2.EngineLease(
        engine_id="e1",
        model="incident",
        channel=common_pb2.CHANNEL_LATEST,
        state=registry_pb2.ENGINE_STATE_READY,
    )
    runner.registry.engines = [lease]

    async def names(owner: str, what: str) -> bool:
        """Also where a service did not answer in time before."""
        why = await explain(runner, run.run_id)
        assert why.waiting_for, f"an episode is queued and nothing is named: {why.summary}"
        return why.waiting_for[0].owner == owner and what in why.summary

    await waiting.until(lambda: names("rollout_sampler", "no sampler pulls them"))
    runner.nats.kill()
    await waiting.until(lambda: names("nats", "the bus cannot be reached"))
    runner.nats.start()
