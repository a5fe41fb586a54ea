"""What the planner makes of failures: the policy's count as 0, a broken environment is played once."""

from dataclasses import replace

import pytest
from google.protobuf import json_format
from tests.services.deliveries import delivered
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, train_spec

from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.wire.published import episode_requested
from scenario_runner.wire.received import graded
from scenario_runner.wire.runs import result_to_wire
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.api.trajectory.v1.trajectory_pb2 import PolicyFailure, Subscore
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import Training
from upcycle.run_config.wire import spec_from_wire, spec_to_wire

TASK = RunnableTask("t", "s", "{}", "default", "0" * 64)


async def test_a_failure_of_the_policy_is_a_result_and_not_played_again(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=2)
    first, second = [row.episode_id for row in await planner.episodes()]
    event = TrajectoryGraded(
        episode=EpisodeIdentity(episode_id=first, run_id=planner.run_id),
        failure=PolicyFailure(kind="answer_error", rule="…", detail="KeyError: x"),
    )
    await planner.apply(graded(event, delivered(event)), planner.graded(second))
    run, rows = await planner.run(), await planner.episodes()
    assert (run.state, run.num_graded, run.success_rate) == (RunState.COMPLETED, 2, 0.5)
    assert [(row.state, row.reason, row.detail, row.reward) for row in rows] == [
        (EpisodeState.EVALUATED, "answer_error", "KeyError: x", 0.0),
        (EpisodeState.EVALUATED, "", "", 1.0),
    ]
    result = result_to_wire(rows[0], TASK)
    assert (result.status, result.failure_kind) == (taskset_pb2.EPISODE_STATUS_GRADED, "answer_error")


async def test_a_broken_environment_is_played_once_and_fails_its_run_by_name(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=3)
    for row in await planner.episodes():
        await planner.apply(planner.failed(row.episode_id, "environment_broken"))
    run = await planner.run()
    assert run.state is RunState.FAILED
    assert run.failure.startswith("environment_broken: every episode fails, whatever is answered: detail")
    assert [row.attempt for row in await planner.episodes()] == [0, 0, 0]


async def test_one_broken_task_is_missing_and_the_others_count(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=2)
    broken, fine = [row.episode_id for row in await planner.episodes()]
    await planner.apply(planner.failed(broken, "environment_broken"), planner.graded(fine))
    run = await planner.run()
    assert (run.state, run.num_graded) == (RunState.COMPLETED, 1)
    assert [row.state for row in await planner.episodes()] == [EpisodeState.FAILED, EpisodeState.EVALUATED]


async def test_a_training_run_of_a_broken_environment_ends_without_playing_any_member_again(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    while (await planner.run()).state is RunState.RUNNING:
        waiting = [row for row in await planner.episodes() if row.is_unsettled]
        assert all(row.attempt == 0 for row in waiting)
        await planner.apply(*(planner.failed(row.episode_id, "environment_broken") for row in waiting))
        await planner.plan_all()
    assert "environment_broken: every episode fails" in (await planner.run()).failure


async def test_commands_say_what_the_run_makes_of_failures(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=1)
    run, (row, *_) = await planner.run(), await planner.episodes()
    lenient = replace(run, spec=replace(run.spec, training=Training(score_failures=False)))
    assert not episode_requested(run, row, TASK, planner.now).failures_are_missing
    assert episode_requested(lenient, row, TASK, planner.now).failures_are_missing
    sent = json_format.MessageToJson(spec_to_wire(lenient.spec))
    kept = spec_from_wire(json_format.Parse(sent, taskset_pb2.RunSpec()))
    assert kept.failures_are_missing
    assert not eval_spec().failures_are_missing  # an evaluation always counts them


async def test_tasks_without_a_solution_count_in_no_rate_of_an_evaluation(
    planner: PlannerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await planner.submit_families({"f": 2, IMPOSSIBLE_FAMILY: 2}, eval_spec(group_size=1))
    await planner.plan_all()
    for one in await planner.episodes():
        await planner.apply(planner.graded(one.episode_id, 0.0 if one.task_position == 0 else 1.0))
    run = await planner.run()
    assert (run.state, run.num_graded, run.success_rate, run.reward_mean) == (RunState.COMPLETED, 2, 0.5, 0.5)
    assert "run_was_miscounted" not in caplog.text


async def test_an_evaluation_of_tasks_without_a_solution_alone_completes(planner: PlannerHarness) -> None:
    await planner.submit_families({IMPOSSIBLE_FAMILY: 1}, eval_spec(group_size=1))
    await planner.plan_all()
    await planner.apply(planner.graded(planner.members(0)[0], 1.0))
    run = await planner.run()
    assert (run.state, run.num_graded) == (RunState.COMPLETED, 0)


async def test_what_shadow_graders_said_is_in_the_results(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=3)
    for one, confirms in zip(await planner.episodes(), (1.0, 0.0, None), strict=True):
        parts = [Subscore(name="found", weight=1.0, value=1.0)]
        parts += [] if confirms is None else [Subscore(name="shadow_exact", value=confirms)]
        identity = EpisodeIdentity(episode_id=one.episode_id, run_id=planner.run_id)
        await planner.apply(
            graded(TrajectoryGraded(episode=identity, reward=1.0, success=True, subscores=parts))
        )
    said = [result_to_wire(row, TASK) for row in await planner.episodes()]
    assert [one.shadow if one.HasField("shadow") else None for one in said] == [True, False, None]
