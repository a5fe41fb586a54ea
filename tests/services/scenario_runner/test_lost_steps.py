"""A `step.completed` or `group.settled` that the planner never reads: what the trainer says stands for it."""

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.test_reconciling import Outside, Trainer, with_body

from scenario_runner.domain.facts import Advanced
from scenario_runner.domain.runs import EpisodeState, RunState


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_step_whose_completion_was_lost_is_asked_for(planner: PlannerHarness, steps: int) -> None:
    """Its groups are settled and nothing else is in flight: such a run would wait for ever."""
    await planner.begin(train_spec(prompts=1, staleness=0, steps=steps), num_tasks=3)
    members = planner.members(0)
    await planner.apply(*map(planner.graded, members), planner.settled(planner.group_id(0), members))
    if steps == 2:  # of the next step too
        await planner.plan_all()
        members = planner.members(1)
        await planner.apply(*map(planner.graded, members), planner.settled(planner.group_id(1), members))
    assert await planner.plan_all() == 0
    await Outside(planner, Trainer(step=0)).later()
    assert (await planner.run()).state is RunState.RUNNING
    await Outside(planner, Trainer(step=steps)).later()
    run = await planner.run()
    assert (run.state, run.step, run.policy_version) == (RunState.COMPLETED, steps, steps + 4)


async def test_a_lost_last_step_is_asked_for_beside_groups_that_will_not_train(
    planner: PlannerHarness,
) -> None:
    """Two groups were open for the one step: the second one is complete, or still played."""
    await planner.begin(train_spec(prompts=1, steps=1), num_tasks=3)
    members, others = planner.members(0), planner.members(1)
    await planner.apply(*map(planner.graded, [*members, others[0]]))
    await planner.apply(planner.settled(planner.group_id(0), members))
    await Outside(planner, Trainer(step=1)).later()
    run = await planner.run()
    assert (run.state, run.step) == (RunState.COMPLETED, 1)
    await check_conservation(planner)


async def test_a_step_settles_a_group_whose_own_end_was_lost(planner: PlannerHarness) -> None:
    """Both were decided together. Without it the last step would cancel what it had trained."""
    await planner.begin(train_spec(prompts=2, steps=1), num_tasks=4)
    trained = [*planner.members(0), *planner.members(1)]
    await planner.apply(*map(planner.graded, trained))
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0)))
    await planner.apply(Advanced(planner.run_id, 1, 1, episode_ids=tuple(trained)))
    assert (await planner.run()).state is RunState.COMPLETED
    rows = {row.episode_id: (row.state, row.reason) for row in await planner.episodes()}
    assert {rows[episode] for episode in trained} == {(EpisodeState.TRAINED, "step 1")}
    await check_conservation(planner)


async def test_a_step_of_which_a_group_is_unsettled_is_not_taken_over(planner: PlannerHarness) -> None:
    """It is durable at the trainer, its policy is on its way into the store, and it may still be void."""
    await planner.begin(train_spec(prompts=2, steps=1), num_tasks=4)
    for group in (0, 1):
        await planner.apply(*(with_body(planner, member) for member in planner.members(group)))
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0)))
    outside = Outside(planner, Trainer(step=1))
    assert await outside.later() == 1
    assert ((await planner.run()).state, (await planner.run()).step) == (RunState.RUNNING, 0)
    await planner.apply(planner.settled(planner.group_id(1), planner.members(1)))
    await outside.later()
    assert (await planner.run()).state is RunState.COMPLETED


async def test_a_settlement_that_is_read_after_its_step_takes_no_group_from_the_next(
    planner: PlannerHarness,
) -> None:
    """Of 2 steps of 2 groups, one group.settled of the first was lost, and is published again."""
    await planner.begin(train_spec(prompts=2, steps=2, staleness=0), num_tasks=4)
    for group in (0, 1):
        await planner.apply(*map(planner.graded, planner.members(group)))
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0)))
    await planner.apply(Advanced(planner.run_id, 1, 1))
    await planner.apply(planner.settled(planner.group_id(1), planner.members(1)))
    await planner.plan_all()
    open_groups = await planner.do(lambda unit: unit.num_open_groups(planner.run_id))
    assert open_groups == 2


@pytest.mark.parametrize("was_trained", [False, True])
async def test_a_last_step_before_which_a_step_is_never_read_ends_its_run_all_the_same(
    planner: PlannerHarness, was_trained: bool
) -> None:
    """The trainer is asked, and its groups are announced again, before the planner decides about them. Where
    the trainer had trained one, its decision stands and comes back; the episodes were cancelled."""
    await planner.begin(train_spec(prompts=1, staleness=1, steps=2), num_tasks=4)
    members = [planner.members(group) for group in range(2)]
    for episode in [*members[0], *members[1]]:
        await planner.apply(with_body(planner, episode))
    await planner.apply(Advanced(planner.run_id, 2, 2, episode_ids=tuple(members[1])))
    outside = Outside(planner, Trainer(step=2))
    await outside.later()
    assert (await planner.run()).state is RunState.RUNNING
    await outside.later()
    assert (await planner.run()).state is RunState.DRAINING
    (decided,) = await planner.settled_by_planner()
    assert (decided.group_id, decided.outcome) == (planner.group_id(0), "excluded")
    await planner.apply(planner.settled(planner.group_id(0), members[0]) if was_trained else decided)
    assert (await planner.run()).state is RunState.COMPLETED
    rows = {row.episode_id: row.state for row in await planner.episodes()}
    ended = EpisodeState.TRAINED if was_trained else EpisodeState.EXCLUDED
    assert {rows[episode] for episode in members[0]} == {ended}
    await check_conservation(planner)
