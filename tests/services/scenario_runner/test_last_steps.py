"""The end of a training run: what its last steps do not take is not sampled."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, train_spec

from episodes import Split
from scenario_runner.domain import plan
from scenario_runner.domain.facts import Advanced
from scenario_runner.domain.runs import EpisodeState, RunRecord, RunState

PROMPTS = 4


async def train(planner: PlannerHarness, steps: int, excluded_of_three: int = 0) -> Counter[EpisodeState]:
    """The whole run, with groups of two and at most 8 open: of each three groups in the order of the plan
    this many have no spread, and each step trains the 4 oldest others. Returns its episodes by state."""
    await planner.begin(train_spec(prompts=PROMPTS, staleness=1, steps=steps), num_tasks=100)
    ready: list[int] = []
    step, group = 0, 0
    while step < steps:
        await planner.apply(*(planner.graded(episode) for episode in planner.members(group)))
        if group % 3 < excluded_of_three:
            await planner.apply(planner.settled(planner.group_id(group), planner.members(group), "excluded"))
        else:
            ready.append(group)
        group += 1
        if len(ready) == PROMPTS:
            step += 1
            trained = (planner.settled(planner.group_id(one), planner.members(one)) for one in ready)
            await planner.apply(*trained, Advanced(planner.run_id, step, step))
            ready = []
        await planner.plan_all()
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)
    return Counter(row.state for row in await planner.episodes())


@pytest.mark.parametrize(("steps", "trained"), [(1, 8), (3, 24), (6, 48)])
async def test_a_run_samples_nothing_beyond_its_last_step(
    planner: PlannerHarness, steps: int, trained: int
) -> None:
    """4 groups of 2 a step. With 8 groups always open, 8 episodes of each of these runs were thrown away."""
    assert await train(planner, steps) == {EpisodeState.TRAINED: trained}


@pytest.mark.parametrize(
    ("steps", "trained", "excluded", "in_vain"),
    [
        # 4 groups train: 1, 2, 4, 5; 0 and 3 have no spread. A fifth of 4 groups is none.
        (1, 8, 4, 0),
        # 12 groups train, up to number 17, and 6 have no spread. A fifth of 12 groups is 2: 4 episodes.
        (3, 24, 12, 4),
        # 24 groups train, up to number 35, and 12 have no spread. A fifth of 24 groups is 4: 8 episodes.
        (6, 48, 24, 8),
    ],
)
async def test_what_is_expected_to_be_excluded_is_sampled_ahead_but_for_a_fifth_of_the_run_at_most(
    planner: PlannerHarness, steps: int, trained: int, excluded: int, in_vain: int
) -> None:
    found = await train(planner, steps, excluded_of_three=1)
    assert (found[EpisodeState.TRAINED], found[EpisodeState.EXCLUDED]) == (trained, excluded)
    assert found[EpisodeState.CANCELLED] <= in_vain
    assert sum(found.values()) - excluded <= 1.2 * trained


async def test_a_run_goes_on_whose_step_is_known_before_its_group_is_settled(planner: PlannerHarness) -> None:
    """A redelivery may come after what was stored behind it: the group of step 1 is no group of step 2."""
    await planner.begin(train_spec(prompts=1, staleness=0, steps=2), num_tasks=10)
    members = planner.members(0)
    await planner.apply(*(planner.graded(episode) for episode in members))
    await planner.apply(Advanced(planner.run_id, 1, 1))
    await planner.apply(planner.settled(planner.group_id(0), members))
    await planner.plan_all()
    assert {row.group_id for row in await planner.episodes()} == {planner.group_id(0), planner.group_id(1)}


def at(steps: int, step: int, planned: int) -> RunRecord:
    spec = train_spec(prompts=PROMPTS, steps=steps)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    run = RunRecord("run-1", "r", spec, Split.TRAIN, "0" * 64, RunState.RUNNING, now, num_tasks=100)
    return replace(run, step=step, next_position=planned)


@pytest.mark.parametrize(
    ("run", "num_open", "num_in_step", "groups"),
    [
        (at(steps=1, step=0, planned=0), 0, 0, 4),
        (at(steps=10, step=0, planned=0), 0, 0, 40),
        (at(steps=10, step=9, planned=40), 4, 0, 4),
        # The 4 of the last step are settled and its step.completed is under way: nothing more is needed.
        (at(steps=10, step=9, planned=44), 4, 4, 0),
        # 40 ended without training, 36 trained: the 4 that are needed cost 4 * 40 / (36 + 4) = 4 others.
        (at(steps=10, step=9, planned=80), 4, 0, 8),
        # 9 of 10 are lost: 4 * 324 / 40 = 32 others, of which a fifth of 40 groups, 8, may be sampled ahead.
        (at(steps=10, step=9, planned=364), 4, 0, 12),
        # Nothing trained yet, 8 ended without training: 4 * 8 / 4, but a fifth of 4 groups is none.
        (at(steps=1, step=0, planned=8), 0, 0, 4),
        # Beyond the last step, as after a cancel that came late.
        (at(steps=3, step=4, planned=16), 0, 0, 0),
        (at(steps=0, step=9, planned=80), 4, 0, None),
    ],
)
def test_the_groups_that_a_run_still_takes(
    run: RunRecord, num_open: int, num_in_step: int, groups: int | None
) -> None:
    assert plan.groups_to_finish(run, num_open, num_in_step) == groups
