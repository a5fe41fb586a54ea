"""A trainer that will not go on with a run ends it, at once and once."""

from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, eval_spec, train_spec
from tests.services.scenario_runner.support import (
    TRAIN,
    arith,
    explain,
    finished,
    get,
    play_to_grade,
    register,
    run_spec,
    sampling,
    submit,
    until,
)

from scenario_runner.domain.facts import Advanced, Fact, SessionFailed, Stopping
from scenario_runner.domain.runs import EpisodeState, RunState
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events

TEXT = "the trainer gave up (out_of_memory): a batch of one row does not fit"


async def states(planner: PlannerHarness) -> dict[str, EpisodeState]:
    return {row.episode_id: row.state for row in await planner.episodes()}


def failed_session(planner: PlannerHarness) -> SessionFailed:
    return SessionFailed(planner.run_id, "out_of_memory", "a batch of one row does not fit")


async def test_a_run_without_a_grade_fails_when_the_final_stop_is_delivered(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.give_up(is_delivered=False)
    assert (await planner.run()).ending is RunState.FAILED
    await planner.apply(Stopping(planner.run_id, is_final=True))
    run = await planner.run()
    assert (run.state, run.failure) == (RunState.FAILED, TEXT)
    assert set((await states(planner)).values()) == {EpisodeState.CANCELLED}
    announced = await planner.announced()
    assert announced[f"run.finished/{planner.run_id}"] == 1
    assert announced[f"run.stopping/{planner.run_id}/final"] == 1  # another trainer of the run stops too
    await check_conservation(planner)


async def test_graded_groups_are_settled_when_the_final_stop_is_delivered(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.apply(*map(planner.graded, members))
    await planner.give_up(is_delivered=False)
    run = await planner.run()
    assert (run.state, run.ending, run.failure) == (RunState.DRAINING, RunState.FAILED, TEXT)
    assert await planner.plan_all() == 0
    await planner.apply(Stopping(planner.run_id, is_final=True))
    (said,) = await planner.settled_by_planner()
    assert (said.outcome, said.reason, said.episode_ids) == ("excluded", "run_over", tuple(members))
    await planner.apply(said)
    assert (await planner.run()).state is RunState.FAILED
    found = await states(planner)
    assert {found.pop(member) for member in members} == {EpisodeState.EXCLUDED}
    assert set(found.values()) == {EpisodeState.CANCELLED}
    await check_conservation(planner)


async def test_a_grade_that_follows_the_failure_may_still_be_trained_by_another_trainer(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    grades = map(planner.graded, members)
    await planner.apply(failed_session(planner), *grades, planner.settled(planner.group_id(1), members))
    await planner.apply(Stopping(planner.run_id, is_final=True))
    assert (await planner.run()).state is RunState.FAILED
    assert (await states(planner))[members[0]] is EpisodeState.TRAINED
    await check_conservation(planner)


@pytest.mark.parametrize("is_same_batch", [True, False])
async def test_a_settlement_that_follows_the_failure_in_the_stream_stands(
    planner: PlannerHarness, is_same_batch: bool
) -> None:
    """Of two trainers one may give up while the step of the other is on its way."""
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.apply(*map(planner.graded, [*members, *planner.members(2)]))
    facts: list[Fact] = [
        failed_session(planner),
        planner.settled(planner.group_id(1), members),
        Advanced(planner.run_id, 1, 1),
    ]
    for batch in [facts] if is_same_batch else [[fact] for fact in facts]:
        await planner.apply(*batch)
    await planner.apply(Stopping(planner.run_id, is_final=True))
    await planner.apply(*await planner.settled_by_planner())
    run, found = await planner.run(), await states(planner)
    assert (run.state, run.step) == (RunState.FAILED, 1)
    assert found[members[0]] is EpisodeState.TRAINED
    assert found[planner.members(2)[0]] is EpisodeState.EXCLUDED
    await check_conservation(planner)


async def test_a_session_failure_delivered_again_changes_nothing(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(1)))
    await planner.apply(failed_session(planner), failed_session(planner))
    await planner.give_up()
    before = await planner.episodes(), await planner.run(), await planner.announced()
    await planner.apply(SessionFailed(planner.run_id, "error", "another text"))
    assert (await planner.episodes(), await planner.run(), await planner.announced()) == before
    assert before[1].failure == TEXT


async def test_a_paused_run_fails_with_its_refills_held_back(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.pause()
    await planner.apply(planner.failed(planner.members(0)[0]))
    await planner.give_up()
    assert (await planner.run()).state is RunState.FAILED
    await planner.resume()
    assert (await planner.run()).state is RunState.FAILED
    await check_conservation(planner)


@pytest.mark.parametrize("how", ["cancel", "stop"])
@pytest.mark.parametrize("is_delivered", [True, False])
async def test_a_run_that_ends_already_keeps_its_ending_and_stops_waiting(
    planner: PlannerHarness, how: str, is_delivered: bool
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(1)))
    await {"cancel": planner.cancel, "stop": planner.stop}[how](is_delivered=is_delivered)
    assert (await planner.run()).state is RunState.DRAINING
    await planner.give_up()  # no time passes
    run = await planner.run()
    assert run.state is {"cancel": RunState.CANCELLED, "stop": RunState.COMPLETED}[how]
    assert run.failure == TEXT
    await check_conservation(planner)


async def test_cancelling_a_run_that_fails_keeps_the_failure(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(1)))
    await planner.give_up(is_delivered=False)
    await planner.cancel()
    await planner.apply(Stopping(planner.run_id, is_final=True))
    await planner.apply(*await planner.settled_by_planner())
    assert (await planner.run()).state is RunState.FAILED


async def test_a_run_that_is_over_or_has_no_trainer_ignores_a_session_failure(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(steps=1), num_tasks=3)
    await planner.apply(Advanced(planner.run_id, 1, 1))
    before = await planner.run(), await planner.announced()
    await planner.give_up()
    assert (await planner.run(), await planner.announced()) == before
    assert before[0].state is RunState.COMPLETED


async def test_an_evaluation_has_no_session_that_fails(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=3)
    before = await planner.episodes(), await planner.run(), await planner.announced()
    await planner.give_up()
    assert (await planner.episodes(), await planner.run(), await planner.announced()) == before


async def graded_run(runner: Runner) -> taskset_pb2.Run:
    """A training run on the running service: one group is graded, the others are queued."""
    await register(runner, arith(3))
    training = taskset_pb2.TrainingConfig(steps=0, prompts_per_step=1, max_staleness=2)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))

    async def play(request: Any) -> None:
        if request.episode.group_id.endswith("g00000"):
            await play_to_grade(runner, request)

    async with sampling(runner, play):
        await until(runner, run.run_id, lambda counts: counts.by_state["graded"] == 2)
    return run


async def announce_session_failed(runner: Runner, run_id: str) -> None:
    fact = training_events.SessionFailed(
        run_id=run_id, model="incident", kind="diverged", detail="three updates in a row were not finite"
    )
    await runner.bus.publish(fact, model="incident", event_id=f"session.failed/{run_id}")


async def test_a_failed_session_ends_its_run_before_the_grace_period(runner: Runner) -> None:
    run = await graded_run(runner)
    await announce_session_failed(runner, run.run_id)
    done = (await finished(runner, run.run_id)).run
    assert done.state == taskset_pb2.RUN_STATE_FAILED
    assert done.failure == "the trainer gave up (diverged): three updates in a row were not finite"
    assert dict(done.counts.by_state) == {"excluded": 2, "cancelled": 4}
    assert dict(done.counts.groups_by_outcome) == {"excluded(run_over)": 1, "cancelled(run_failed)": 2}
    assert done.failure in (await explain(runner, run.run_id)).summary
    (word,) = [
        one.message for one in await runner.bus.stored((taskset_events.RunStopping,), after_sequence=0)
    ]
    assert (word.ending, word.is_final) == (taskset_pb2.RUN_STATE_FAILED, True)


async def test_a_cancelled_run_whose_session_fails_ends_before_the_grace_period(runner: Runner) -> None:
    run = await graded_run(runner)
    await runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id, reason="enough"))
    assert (await get(runner, run.run_id)).run.state == taskset_pb2.RUN_STATE_DRAINING
    await announce_session_failed(runner, run.run_id)
    done = (await finished(runner, run.run_id)).run
    assert (done.state, done.failure) == (taskset_pb2.RUN_STATE_CANCELLED, "enough")
