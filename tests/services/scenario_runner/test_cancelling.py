"""Cancelling a training run: the trainer's word about a group wins wherever it has one."""

from datetime import timedelta

from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, eval_spec, train_spec
from tests.services.scenario_runner.support import (
    TRAIN,
    arith,
    finished,
    get,
    play_to_grade,
    register,
    run_spec,
    sampling,
    submit,
    until,
)

from scenario_runner.domain.facts import Advanced, Stopping
from scenario_runner.domain.runs import EpisodeState, RunState
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events

TRAINING = taskset_pb2.TrainingConfig(steps=5, prompts_per_step=1, max_staleness=0)


async def with_a_graded_group(planner: PlannerHarness) -> list[str]:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.apply(*map(planner.graded, members))
    return members


async def states(planner: PlannerHarness) -> dict[str, EpisodeState]:
    return {row.episode_id: row.state for row in await planner.episodes()}


async def test_what_a_step_holds_while_its_run_is_cancelled_is_trained(planner: PlannerHarness) -> None:
    members = await with_a_graded_group(planner)
    await planner.cancel()
    run = await planner.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.CANCELLED)
    assert await planner.plan_all() == 0
    await planner.sweep()
    assert {member: (await states(planner))[member] for member in members} == dict.fromkeys(
        members, EpisodeState.GRADED
    )
    await planner.apply(planner.settled(planner.group_id(1), members), Advanced(planner.run_id, 1, 1))
    run = await planner.run()
    assert (run.state, run.step) == (RunState.CANCELLED, 1)
    assert (await states(planner))[members[0]] is EpisodeState.TRAINED
    announced = await planner.announced()
    assert not [
        key for key in announced if key.startswith("episode.cancelled/") and planner.group_id(1) in key
    ]
    await check_conservation(planner)


async def test_a_grade_on_its_way_when_the_run_is_cancelled_is_the_trainers(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.cancel(is_delivered=False)
    assert not [key for key in await planner.announced() if key.startswith("episode.cancelled/")]
    await planner.apply(*map(planner.graded, members), Stopping(planner.run_id))
    await planner.apply(planner.settled(planner.group_id(1), members), Advanced(planner.run_id, 1, 1))
    run = await planner.run()
    assert run.state is RunState.CANCELLED
    assert (await states(planner))[members[0]] is EpisodeState.TRAINED
    await check_conservation(planner)


async def test_the_planner_settles_groups_itself_after_the_deadline_and_waits_for_its_own_event(
    planner: PlannerHarness,
) -> None:
    members = await with_a_graded_group(planner)
    await planner.cancel()
    planner.now += timedelta(seconds=19)
    await planner.sweep()
    assert f"run.stopping/{planner.run_id}/final" not in await planner.announced()
    planner.now += timedelta(seconds=2)
    await planner.sweep()
    await planner.sweep()
    assert (await planner.announced())[f"run.stopping/{planner.run_id}/final"] == 1
    assert await planner.settled_by_planner() == []  # a word of the trainer may lie before ours
    await planner.apply(Stopping(planner.run_id, is_final=True), Stopping(planner.run_id, is_final=True))
    (said,) = await planner.settled_by_planner()
    assert (said.group_id, said.outcome, said.reason) == (planner.group_id(1), "excluded", "run_over")
    assert said.episode_ids == tuple(members)
    assert (await planner.run()).state is RunState.DRAINING  # until the stream says which of the two it keeps
    await planner.apply(said)
    assert (await planner.run()).state is RunState.CANCELLED
    assert (await states(planner))[members[0]] is EpisodeState.EXCLUDED
    await check_conservation(planner)


async def test_a_settlement_of_the_trainer_before_the_final_stop_wins(planner: PlannerHarness) -> None:
    members = await with_a_graded_group(planner)
    await planner.cancel()
    planner.now += timedelta(seconds=21)
    await planner.sweep()
    await planner.apply(Stopping(planner.run_id, is_final=True))
    await planner.apply(planner.settled(planner.group_id(1), members), Advanced(planner.run_id, 1, 1))
    run = await planner.run()
    assert (run.state, run.step) == (RunState.CANCELLED, 1)
    assert (await states(planner))[members[0]] is EpisodeState.TRAINED
    await check_conservation(planner)


async def test_a_planner_that_was_down_reads_all_answers_before_its_final_stop(
    planner: PlannerHarness,
) -> None:
    members = await with_a_graded_group(planner)
    await planner.cancel()
    planner.now += timedelta(hours=2)  # the trainer answered within a second, and its answer was not read
    await planner.sweep()
    await planner.apply(
        planner.settled(planner.group_id(1), members), Stopping(planner.run_id, is_final=True)
    )
    assert await planner.settled_by_planner() == []
    assert (await planner.run()).state is RunState.CANCELLED
    assert (await states(planner))[members[0]] is EpisodeState.TRAINED


async def test_a_run_without_a_grade_is_over_when_its_run_stopping_is_delivered(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.cancel()
    run = await planner.run()
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    assert run.state is RunState.CANCELLED
    assert (counts.requested, counts.settled, counts.in_flight, counts.groups_open) == (8, 8, 0, 0)


async def test_an_evaluation_is_cancelled_at_once(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=3)
    await planner.cancel(is_delivered=False)
    assert (await planner.run()).state is RunState.CANCELLED
    assert f"run.stopping/{planner.run_id}" not in await planner.announced()
    await check_conservation(planner)


async def test_a_grade_that_races_the_cancellation_of_an_evaluation_changes_nothing(
    planner: PlannerHarness,
) -> None:
    """It may stand before `episode.cancelled` in the stream: the ledger counts it as evaluated then."""
    await planner.begin(eval_spec(), num_tasks=3)
    first, *_ = await planner.episodes()
    await planner.cancel(is_delivered=False)
    await planner.apply(planner.graded(first.episode_id))
    assert {row.state for row in await planner.episodes()} == {EpisodeState.CANCELLED}
    assert f"episode.cancelled/{first.episode_id}" in await planner.announced()
    await check_conservation(planner)


async def test_cancelling_a_run_that_stops_shortens_the_wait(planner: PlannerHarness) -> None:
    await with_a_graded_group(planner)
    await planner.stop()
    await planner.cancel(is_delivered=False)
    planner.now += timedelta(seconds=21)
    await planner.sweep()
    await planner.apply(Stopping(planner.run_id, is_final=True))
    await planner.apply(*await planner.settled_by_planner())
    assert (await planner.run()).state is RunState.CANCELLED
    await check_conservation(planner)


async def test_the_last_step_under_way_ends_a_cancelled_run(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(steps=1), num_tasks=3)
    members = planner.members(0)
    await planner.apply(*map(planner.graded, [*members, *planner.members(1)]))
    await planner.cancel()
    await planner.apply(planner.settled(planner.group_id(0), members), Advanced(planner.run_id, 1, 1))
    await planner.apply(*await planner.settled_by_planner())
    assert (await planner.run()).state is RunState.CANCELLED
    found = await states(planner)
    assert found[members[0]] is EpisodeState.TRAINED
    assert found[planner.members(1)[0]] is EpisodeState.EXCLUDED
    await check_conservation(planner)


async def graded_run(runner: Runner) -> taskset_pb2.Run:
    """A training run on the running service with one group, graded."""
    await register(runner, arith(3))
    run = await submit(runner, run_spec(TRAIN, 2, training=TRAINING))
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        await until(runner, run.run_id, lambda counts: counts.by_state["graded"] == 2)
    await runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id, reason="enough"))
    return run


def trained(run_id: str) -> training_events.GroupSettled:
    """The word of a trainer that had the group in its step."""
    group_id = f"{run_id}-g00000"
    return training_events.GroupSettled(
        group_id=group_id,
        run_id=run_id,
        model="incident",
        outcome="trained",
        step=1,
        episode_ids=[f"{group_id}-e{member:03d}-a0" for member in range(2)],
    )


async def facts_of(runner: Runner, *kinds: type) -> list[object]:
    return [delivery.message for delivery in await runner.bus.stored(kinds, after_sequence=0)]


async def test_a_step_that_ends_after_the_cancellation_still_trains_its_group(runner: Runner) -> None:
    run = await graded_run(runner)
    assert (await get(runner, run.run_id)).run.state == taskset_pb2.RUN_STATE_DRAINING
    fact = trained(run.run_id)
    await runner.bus.publish(
        fact, model="incident", event_id=f"group.settled/{fact.group_id}", author="trainer"
    )
    done = (await finished(runner, run.run_id)).run
    assert (done.state, dict(done.counts.by_state)) == (taskset_pb2.RUN_STATE_CANCELLED, {"trained": 2})
    assert await facts_of(runner, taskset_events.EpisodeCancelled) == []
    (stopping,) = await facts_of(runner, taskset_events.RunStopping)
    assert isinstance(stopping, taskset_events.RunStopping)
    assert (stopping.ending, stopping.is_final) == (taskset_pb2.RUN_STATE_CANCELLED, False)


async def test_a_trainer_that_comes_back_after_its_run_was_cancelled_finds_its_groups_settled(
    start_runner: Start,
) -> None:
    runner = await start_runner(cancel_grace_s=0.5)
    run = await graded_run(runner)
    done = (await finished(runner, run.run_id)).run
    assert (done.state, dict(done.counts.by_state)) == (taskset_pb2.RUN_STATE_CANCELLED, {"excluded": 2})
    fact = trained(run.run_id)
    late = await runner.bus.publish(
        fact, model="incident", event_id=f"group.settled/{fact.group_id}", author="trainer"
    )
    assert late.duplicate
    (said,) = await facts_of(runner, training_events.GroupSettled)
    assert isinstance(said, training_events.GroupSettled)
    assert (said.outcome, said.reason) == ("excluded", "run_over")
