"""Which tasks a sampler draws: by hand, and through the planner's tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, train_spec

from scenario_runner.domain.runs import EpisodeRow
from scenario_runner.domain.task_sampler import TaskPast, added, draw_tasks

SOLVED, HARD, MIXED, NEW = TaskPast(0, 8, 40), TaskPast(0, 38, 41), TaskPast(6, 2, 42), TaskPast()


def shares(sampler: str, past: list[TaskPast], draws: int = 4000) -> list[float]:
    """How often each task comes first."""
    first = Counter(draw_tasks(sampler, 7, past, range(at, at + 1))[0] for at in range(50, 50 + draws))
    return [first[task] / draws for task in range(len(past))]


def test_by_spread_tasks_are_drawn_as_often_as_their_groups_have_spread() -> None:
    """Weights 1/10, the least 0.05 (1/40 would be less), 7/10, and 1/2 of what is not known."""
    total = 0.1 + 0.05 + 0.7 + 0.5
    wanted = [0.1 / total, 0.05 / total, 0.7 / total, 0.5 / total]
    assert shares("spread", [SOLVED, HARD, MIXED, NEW]) == pytest.approx(wanted, abs=0.025)


def test_by_age_tasks_are_drawn_by_the_groups_since_their_last_one() -> None:
    """At position 50: 10, 9, 8 groups since, and 51 for one that was never played."""
    only = [draw_tasks("age", seed, [SOLVED, HARD, MIXED, NEW], range(50, 51))[0] for seed in range(4000)]
    found = [only.count(task) / 4000 for task in range(4)]
    assert found == pytest.approx([10 / 78, 9 / 78, 8 / 78, 51 / 78], abs=0.025)


def test_a_task_is_a_quarter_as_likely_again_in_one_plan_and_the_same_past_draws_the_same() -> None:
    past = [SOLVED, HARD, MIXED, NEW]
    drawn = draw_tasks("spread", 3, past, range(8, 16))
    assert len(drawn) == 8
    pairs = [draw_tasks("spread", seed, [MIXED, MIXED], range(8, 10)) for seed in range(4000)]
    again = sum(first == second for first, second in pairs) / 4000
    assert again == pytest.approx(0.2, abs=0.02), "1/4 against 1"
    assert drawn == draw_tasks("spread", 3, past, range(8, 16))
    assert len({tuple(draw_tasks("spread", seed, past, range(8, 12))) for seed in range(20)}) > 1


def test_pasts_add_up() -> None:
    known = {3: TaskPast(1, 2, 9)}
    assert added(known, 3, trained=2, flat=0, newest=4) == TaskPast(3, 2, 9)
    assert added(known, 5, trained=0, flat=1, newest=12) == TaskPast(0, 1, 12)


async def played_tasks(planner: PlannerHarness, sampler: str, rounds: int = 12) -> list[int]:
    """The task of each group of a run over three tasks of which only the first has groups with spread."""
    spec = train_spec(prompts=3, staleness=1, steps=10_000, no_step_groups=10_000)
    assert spec.training is not None
    await planner.begin(replace(spec, training=replace(spec.training, task_sampler=sampler)), num_tasks=3)
    for _ in range(rounds):
        members: dict[str, list[EpisodeRow]] = {}
        for row in await planner.episodes():
            if row.is_unsettled:
                members.setdefault(row.group_id, []).append(row)
        for group_id, rows in members.items():
            names = [row.episode_id for row in rows]
            outcome = "trained" if rows[0].task_position == 0 else "excluded"
            await planner.apply(*(planner.graded(name) for name in names))
            await planner.apply(planner.settled(group_id, names, outcome))
        await planner.plan_all()
    groups = {row.group_id: row.task_position for row in await planner.episodes()}
    return [groups[name] for name in sorted(groups)]


async def test_a_run_comes_back_to_tasks_that_teach_it_and_gives_none_up(planner: PlannerHarness) -> None:
    late = (await played_tasks(planner, "spread"))[-36:]
    # Weights near 1 and at most 1/4: of three groups of a plan about 0.8 + 0.6 + 0.3 are of the first task.
    assert late.count(0) >= 16, "12 would be its turns"
    assert {1, 2} <= set(late)


async def test_without_a_sampler_every_task_is_played_once_per_epoch(planner: PlannerHarness) -> None:
    played = await played_tasks(planner, "uniform", rounds=3)
    assert all(sorted(played[at : at + 3]) == [0, 1, 2] for at in range(0, len(played) - 2, 3))


async def test_by_age_no_task_waits_long(planner: PlannerHarness) -> None:
    played = await played_tasks(planner, "age", rounds=4)
    assert all(set(played[at : at + 9]) == {0, 1, 2} for at in range(len(played) - 8))
