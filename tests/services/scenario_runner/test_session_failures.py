"""A trainer that will not go on with a run ends it, at once and once."""

import asyncio
import time
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import (
    World,
    check_conservation,
    eval_spec,
    train_spec,
)
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


async def states(world: World) -> dict[str, EpisodeState]:
    return {row.episode_id: row.state for row in await world.episodes()}


def failed_session(world: World) -> SessionFailed:
    return SessionFailed(world.run_id, "out_of_memory", "a batch of one row does not fit")


async def test_a_run_without_a_grade_fails_when_the_last_word_comes_back(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.give_up(is_delivered=False)
    assert (await world.run()).ending is RunState.FAILED
    await world.apply(Stopping(world.run_id, is_final=True))
    run = await world.run()
    assert (run.state, run.failure) == (RunState.FAILED, TEXT)
    assert set((await states(world)).values()) == {EpisodeState.CANCELLED}
    announced = await world.announced()
    assert announced[f"run.finished/{world.run_id}"] == 1
    assert announced[f"run.stopping/{world.run_id}/final"] == 1  # another trainer of the run stops too
    await check_conservation(world)


async def test_what_is_graded_ends_when_the_last_word_comes_back(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(1)
    await world.apply(*map(world.graded, members))
    await world.give_up(is_delivered=False)
    run = await world.run()
    assert (run.state, run.ending, run.failure) == (RunState.DRAINING, RunState.FAILED, TEXT)
    assert await world.plan_all() == 0
    await world.apply(Stopping(world.run_id, is_final=True))
    (said,) = await world.settled_by_planner()
    assert (said.outcome, said.reason, said.episode_ids) == ("excluded", "run_over", tuple(members))
    await world.apply(said)
    assert (await world.run()).state is RunState.FAILED
    found = await states(world)
    assert {found.pop(member) for member in members} == {EpisodeState.EXCLUDED}
    assert set(found.values()) == {EpisodeState.CANCELLED}
    await check_conservation(world)


async def test_a_grade_that_follows_the_failure_may_still_be_trained_by_another_trainer(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(1)
    grades = map(world.graded, members)
    await world.apply(failed_session(world), *grades, world.settled(world.group_id(1), members))
    await world.apply(Stopping(world.run_id, is_final=True))
    assert (await world.run()).state is RunState.FAILED
    assert (await states(world))[members[0]] is EpisodeState.TRAINED
    await check_conservation(world)


@pytest.mark.parametrize("is_same_batch", [True, False])
async def test_a_settlement_that_follows_the_failure_in_the_stream_stands(
    world: World, is_same_batch: bool
) -> None:
    """Of two trainers one may give up while the step of the other is on its way."""
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(1)
    await world.apply(*map(world.graded, [*members, *world.members(2)]))
    facts: list[Fact] = [
        failed_session(world),
        world.settled(world.group_id(1), members),
        Advanced(world.run_id, 1, 1),
    ]
    for batch in [facts] if is_same_batch else [[fact] for fact in facts]:
        await world.apply(*batch)
    await world.apply(Stopping(world.run_id, is_final=True))
    await world.apply(*await world.settled_by_planner())
    run, found = await world.run(), await states(world)
    assert (run.state, run.step) == (RunState.FAILED, 1)
    assert found[members[0]] is EpisodeState.TRAINED
    assert found[world.members(2)[0]] is EpisodeState.EXCLUDED
    await check_conservation(world)


async def test_a_failure_that_is_told_again_changes_nothing(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.apply(*map(world.graded, world.members(1)))
    await world.apply(failed_session(world), failed_session(world))
    await world.give_up()
    before = await world.episodes(), await world.run(), await world.announced()
    await world.apply(SessionFailed(world.run_id, "error", "another text"))
    assert (await world.episodes(), await world.run(), await world.announced()) == before
    assert before[1].failure == TEXT


async def test_a_paused_run_fails_with_its_refills_held_back(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.pause()
    await world.apply(world.failed(world.members(0)[0]))
    await world.give_up()
    assert (await world.run()).state is RunState.FAILED
    await world.resume()
    assert (await world.run()).state is RunState.FAILED
    await check_conservation(world)


@pytest.mark.parametrize("how", ["cancel", "stop"])
@pytest.mark.parametrize("heard", [True, False])
async def test_a_run_that_ends_already_keeps_its_ending_and_stops_waiting(
    world: World, how: str, heard: bool
) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.apply(*map(world.graded, world.members(1)))
    await {"cancel": world.cancel, "stop": world.stop}[how](is_delivered=heard)
    assert (await world.run()).state is RunState.DRAINING
    await world.give_up()  # no time passes
    run = await world.run()
    assert run.state is {"cancel": RunState.CANCELLED, "stop": RunState.COMPLETED}[how]
    assert run.failure == TEXT
    await check_conservation(world)


async def test_cancelling_a_run_that_fails_keeps_the_failure(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.apply(*map(world.graded, world.members(1)))
    await world.give_up(is_delivered=False)
    await world.cancel()
    await world.apply(Stopping(world.run_id, is_final=True))
    await world.apply(*await world.settled_by_planner())
    assert (await world.run()).state is RunState.FAILED


async def test_a_run_that_is_over_or_has_no_trainer_hears_nothing(world: World) -> None:
    await world.begin(train_spec(steps=1), num_tasks=3)
    await world.apply(Advanced(world.run_id, 1, 1))
    before = await world.run(), await world.announced()
    await world.give_up()
    assert (await world.run(), await world.announced()) == before
    assert before[0].state is RunState.COMPLETED


async def test_an_evaluation_has_no_session_that_fails(world: World) -> None:
    await world.begin(eval_spec(), num_tasks=3)
    before = await world.episodes(), await world.run(), await world.announced()
    await world.give_up()
    assert (await world.episodes(), await world.run(), await world.announced()) == before


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


async def test_a_failed_session_ends_its_run_within_a_moment(runner: Runner) -> None:
    run = await graded_run(runner)
    started = time.monotonic()
    await announce_session_failed(runner, run.run_id)
    done = (await finished(runner, run.run_id)).run
    took_s = time.monotonic() - started
    assert took_s < 2.0
    assert done.state == taskset_pb2.RUN_STATE_FAILED
    assert done.failure == "the trainer gave up (diverged): three updates in a row were not finite"
    assert dict(done.counts.by_state) == {"excluded": 2, "cancelled": 4}
    assert dict(done.counts.groups_by_outcome) == {"excluded(run_over)": 1, "cancelled(run_failed)": 2}
    assert done.failure in (await explain(runner, run.run_id)).summary
    (word,) = [
        one.message for one in await runner.bus.stored((taskset_events.RunStopping,), after_sequence=0)
    ]
    assert (word.ending, word.is_final) == (taskset_pb2.RUN_STATE_FAILED, True)


async def test_cancelling_a_run_whose_session_fails_takes_a_moment(runner: Runner) -> None:
    run = await graded_run(runner)
    await runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id, reason="enough"))
    await asyncio.sleep(0.3)
    assert (await get(runner, run.run_id)).run.state == taskset_pb2.RUN_STATE_DRAINING
    started = time.monotonic()
    await announce_session_failed(runner, run.run_id)
    done = (await finished(runner, run.run_id)).run
    assert time.monotonic() - started < 2.0
    assert (done.state, done.failure) == (taskset_pb2.RUN_STATE_CANCELLED, "enough")
