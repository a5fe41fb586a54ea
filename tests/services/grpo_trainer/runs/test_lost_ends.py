"""Runs that the planner ended, and whose run.finished the stream lost: they end here too, and the next run of
the model trains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.libs.planned_runs.support import CANCELLED, COMPLETED, RUNNING, Planner, asking, planner_of
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.runs.test_cancelled_runs import CLOSED, until_closed
from tests.services.grpo_trainer.runs.test_reopening import new_world
from tests.support.waiting import until

from grpo_trainer.runs.lost_ends import LostEnds
from grpo_trainer.runs.lost_facts import LostFacts
from grpo_trainer.runs.stores import BlobStates
from identities.objects import training_run
from planned_runs import PlannedRuns
from upcycle.api.training.v1 import events_pb2 as training_events

NEXT = "run-next"


@pytest.fixture
async def world(tmp_path: Any) -> World:
    return await new_world(tmp_path)


@pytest.fixture
def planner() -> Planner:
    return planner_of(MODEL, {RUN: CANCELLED, NEXT: RUNNING})


@pytest.fixture
async def planned(planner: Planner) -> AsyncIterator[PlannedRuns]:
    async with asking(planner) as planned:
        yield planned


async def test_the_planner_says_which_model_a_run_trains(planned: PlannedRuns) -> None:
    assert await planned.model_of(RUN) == MODEL
    assert await planned.model_of("run-unknown") is None


async def the_next_run(world: World) -> None:
    """Submitted, with a batch."""
    world.stream.append(submission(run_id=NEXT, steps=1))
    await Episodes(world, run_id=NEXT).groups(range(2))


async def looks_until_trained(world: World, planned: PlannedRuns) -> None:
    async with Trainer(world) as trainer:
        ends = LostEnds(trainer.sessions, planned)

        async def is_trained() -> bool:
            await ends.look()
            return f"step.completed/{NEXT}/1" in world.recorder.events

        await until(is_trained, "the step of the next run", timeout_s=60)
    assert CLOSED in world.store.objects


async def begun(world: World) -> None:
    """A trainer begins the run; nothing of its end reaches the stream."""
    async with Trainer(world) as trainer:
        await until(lambda: trainer.sessions.all and trainer.sessions.all[0].state is not None, timeout_s=60)


async def test_a_run_that_ended_while_its_trainer_was_away_gives_its_model_to_the_next(
    world: World, planned: PlannedRuns
) -> None:
    await begun(world)
    await the_next_run(world)
    await looks_until_trained(world, planned)


async def test_a_run_of_which_only_a_claim_is_left_ends_too(world: World, planned: PlannedRuns) -> None:
    """Its trainer was killed before the first state, and the stream has no run.submitted of it."""
    world.stream.facts.clear()
    await BlobStates(world.store).claim(training_run(MODEL, RUN), token=0, by="the one before")
    await the_next_run(world)
    await looks_until_trained(world, planned)


async def test_a_completed_run_has_its_last_checkpoint_though_its_whole_end_was_lost(
    world: World, planner: Planner, planned: PlannedRuns
) -> None:
    planner.states[RUN] = COMPLETED
    await Episodes(world).groups(range(1))
    async with Trainer(world) as trainer:
        await world.published(f"policy.published/default/{MODEL}/1")
        ends = LostEnds(trainer.sessions, planned)
        await ends.look()
        await ends.look()
        await until_closed(world)
    assert [one.is_final for one in world.recorder.of(training_events.CheckpointSaved)] == [True]


async def test_a_failed_run_is_closed(world: World, planned: PlannedRuns) -> None:
    world.stream.facts.clear()
    world.stream.append(submission(learning_rate=-1.0))
    async with Trainer(world) as trainer:
        await world.published(f"session.failed/{RUN}")
        ends = LostEnds(trainer.sessions, planned)
        await ends.look()
        await ends.look()
        await until_closed(world)
        await until(lambda: RUN not in trainer.sessions.not_over)


async def test_a_run_ends_at_the_second_look_in_a_row_that_finds_it_over(
    world: World, planner: Planner, planned: PlannedRuns
) -> None:
    """A run.finished that is on its way arrives between two looks."""
    async with Trainer(world) as trainer:
        await until(lambda: RUN in trainer.sessions.not_over)
        ends, run = LostEnds(trainer.sessions, planned), trainer.sessions._open[RUN]
        for state in (CANCELLED, RUNNING, CANCELLED):
            planner.states[RUN] = state
            await ends.look()
            assert not run.over.is_set()
        await ends.look()
        assert run.over.is_set()
        assert planner.asked == [RUN] * 4, "one question a look"
        await until_closed(world)


async def test_a_run_that_the_planner_does_not_know_goes_on(
    world: World, planner: Planner, planned: PlannedRuns
) -> None:
    """The planner's database may have been made anew."""
    planner.states.clear()
    async with Trainer(world) as trainer:
        await until(lambda: RUN in trainer.sessions.not_over)
        ends = LostEnds(trainer.sessions, planned)
        for _ in range(3):
            await ends.look()
        assert not trainer.sessions._open[RUN].over.is_set()


async def test_facts_lost_with_an_open_run_are_named_until_the_planner_was_asked(
    world: World, planner: Planner, planned: PlannedRuns
) -> None:
    planner.states[RUN] = RUNNING
    async with Trainer(world) as trainer:
        lost = trainer.sessions.lost
        await until(lambda: RUN in trainer.sessions.not_over)
        await until(lambda: trainer._reader.ready() is None, timeout_s=60)
        lost.aged_out(after=7, first=12)
        assert trainer._reader.ready() == (
            "facts 8 to 11 of the stream were removed unread; "
            f"the planner is asked about the open runs ({RUN})"
        )
        ends = LostEnds(trainer.sessions, planned)
        await ends.look()
        assert trainer._reader.ready() is not None
        await ends.look()
        assert trainer._reader.ready() is None


async def test_facts_lost_without_an_open_run_are_nothing_to_wait_for() -> None:
    lost = LostFacts(list)
    lost.aged_out(after=7, first=12)
    assert lost.waiting_for() is None


async def test_only_the_runs_that_the_planner_does_not_answer_about_are_waited_for() -> None:
    runs = ["run-a", "run-b", "run-c"]
    lost = LostFacts(lambda: runs)
    lost.found("facts are gone")
    for _ in range(2):
        lost.asked({"run-a"})
    assert lost.waiting_for() == "facts are gone; the planner is asked about the open runs (run-b, run-c)"
    runs.remove("run-c")
    lost.asked({"run-b"})
    assert lost.waiting_for() is not None
    lost.asked({"run-a", "run-b"})
    assert lost.waiting_for() is None
