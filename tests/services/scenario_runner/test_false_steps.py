"""A `step.completed` that no trainer published about the run neither ends it nor stops its planning."""

from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, eval_spec, train_spec
from tests.services.scenario_runner.support import (
    TRAIN,
    arith,
    finished,
    play_to_grade,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.scenario_runner.test_service import FakeTrainer
from tests.support.waiting import until

from event_bus.dead_letter_box import DeadLetterBox
from scenario_runner.domain.facts import Advanced
from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.usecases.completed_steps import FalseStep
from service_kit.groups import BusSettings
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.training.v1.events_pb2 import StepCompleted


async def graded_groups(planner: PlannerHarness, count: int) -> list[list[str]]:
    """A run of 3 steps of 2 groups, of which so many are graded; their episodes by group."""
    await planner.begin(train_spec(prompts=2, steps=3), num_tasks=4)
    groups = [planner.members(group) for group in range(count)]
    await planner.apply(*(planner.graded(member) for members in groups for member in members))
    return groups


@pytest.mark.parametrize(
    ("step", "named", "why"),
    [
        (3, (), "names 0 groups of the run, and a step trains 2"),
        (3, (0,), "names 1 groups of the run, and a step trains 2"),
        (1, (0, "run-000000000002-g00000-e000-a0"), "names 1 groups"),
        (1, (0, "run-000000000001-g00099-e000-a0"), "names 1 groups"),
        (4, (0, 1), "the run ends with step 3"),
    ],
)
async def test_a_step_that_cannot_be_true_changes_nothing(
    planner: PlannerHarness, step: int, named: tuple[int | str, ...], why: str
) -> None:
    groups = await graded_groups(planner, 2)
    episodes: list[str] = []
    for one in named:
        episodes += [one] if isinstance(one, str) else groups[one]
    before = await planner.run()
    with pytest.raises(FalseStep, match=why):
        await planner.apply(Advanced(planner.run_id, step, step, 9.0, tuple(episodes)))
    assert await planner.run() == before
    assert {row.state for row in await planner.episodes()} <= {EpisodeState.GRADED, EpisodeState.PLANNED}
    await check_conservation(planner)


async def test_a_step_of_an_evaluation_is_false(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=2)
    with pytest.raises(FalseStep, match="the run does not train"):
        await planner.apply(Advanced(planner.run_id, 1, 1, 0.0, tuple(planner.members(0))))


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_step_that_leaves_out_others_counts_once_their_groups_are_known(
    planner: PlannerHarness, is_late: bool
) -> None:
    """The stream lost the one between, or another planner reads it: until then the run plans on."""
    groups = await graded_groups(planner, 4)
    await planner.apply(Advanced(planner.run_id, 1, 1, 0.0, (*groups[0], *groups[1])))
    await planner.plan_all()
    last = [planner.members(group) for group in (4, 5)]
    await planner.apply(*(planner.graded(member) for members in last for member in members))
    third = Advanced(planner.run_id, 3, 3, 0.0, (*last[0], *last[1]))
    await planner.apply(third)
    run = await planner.run()
    assert (run.state, run.step) == (RunState.RUNNING, 1)
    if is_late:
        await planner.apply(Advanced(planner.run_id, 2, 2, 0.0, (*groups[2], *groups[3])))
    else:
        await planner.apply(*(planner.settled(planner.group_id(group), groups[group]) for group in (2, 3)))
        await planner.apply(third)
    run = await planner.run()
    assert (run.state, run.step, run.ending) == (RunState.COMPLETED, 3, RunState.COMPLETED)
    await check_conservation(planner)


async def test_a_step_that_was_known_before_is_never_false(planner: PlannerHarness) -> None:
    groups = await graded_groups(planner, 2)
    await planner.apply(Advanced(planner.run_id, 1, 1, 0.0, (*groups[0], *groups[1])))
    await planner.apply(Advanced(planner.run_id, 1, 1, 0.0, ()))
    assert (await planner.run()).step == 1


async def test_a_version_ends_no_run(planner: PlannerHarness) -> None:
    """policy.published may overtake the steps before it."""
    await planner.begin(train_spec(prompts=1, steps=2), num_tasks=4)
    members = [planner.members(group) for group in range(2)]
    await planner.apply(*map(planner.graded, [*members[0], *members[1]]))
    await planner.apply(Advanced(planner.run_id, 1, 1, 0.0, tuple(members[0])))
    await planner.apply(Advanced(planner.run_id, 0, 2))
    run = await planner.run()
    assert (run.state, run.step, run.policy_version) == (RunState.RUNNING, 1, 2)


async def test_on_the_bus_a_false_last_step_is_a_dead_letter_and_the_run_trains_on(runner: Runner) -> None:
    await register(runner, arith(3))
    training = taskset_pb2.TrainingConfig(steps=2, prompts_per_step=2, max_staleness=1)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))
    false = StepCompleted(run_id=run.run_id, model="incident", step=2, version=2)
    await runner.bus.publish(false, model="incident", event_id=f"step.completed/{run.run_id}/2-false")
    await until(lambda: is_named(runner, run.run_id), "the dead letter")
    trainer = FakeTrainer(runner, run.run_id, steps=2, prompts_per_step=2)

    async def play(request: Any) -> None:
        await play_to_grade(runner, request)
        await trainer.on_graded(request)

    async with sampling(runner, play):
        done = (await finished(runner, run.run_id)).run
    assert (done.state, done.counts.by_state["trained"]) == (taskset_pb2.RUN_STATE_COMPLETED, 8)


async def is_named(runner: Runner, run_id: str) -> bool:
    async with DeadLetterBox.opened(BusSettings(url=runner.nats.url)) as box:
        return any(run_id in letter.reason for letter in await box.letters(limit=20))
