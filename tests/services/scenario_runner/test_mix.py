"""Runs on several tasksets in the planner: whose task is next, how each counts, what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from tests.services.scenario_runner.planning import RULES, PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.test_guidance import guided_spec, play

from episodes import Split
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.adapters.tables import RUN
from scenario_runner.domain.environments import EnvironmentSource, PythonEnvironment
from scenario_runner.domain.mixes import MixedRow, MixReport, gives_nothing, row_of, rows_of
from scenario_runner.domain.plan import tasks_from
from scenario_runner.domain.runs import RunRecord, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.usecases.planning import plan_more
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.views import view_of
from upcycle.run_config import RunSpec, Training

BOTH = {"ts": 3, "b": 2}
OPEN = 4


def mixed(*mix: str, spec: RunSpec | None = None) -> RunSpec:
    return replace(spec or train_spec(no_step_groups=10_000), mix=mix)


def taskset(name: str, size: int, start: int = 0) -> RegisteredTaskset:
    """Of an environment with its own name."""
    tasks = tuple(
        RunnableTask(f"{name}{n}", "s", "{}", "default", f"{name}{n}".rjust(64, "0"))
        for n in range(start, start + size)
    )
    source: EnvironmentSource = PythonEnvironment(f"of-{name}", f"/{name}.py")
    return RegisteredTaskset(name, f"{name}{start}/{size}".rjust(64, "0"), Split.TRAIN, source, size, tasks)


async def submit(planner: PlannerHarness, spec: RunSpec, sizes: Mapping[str, int] = BOTH) -> None:
    """The first taskset is the run's own; the source of each is its name."""

    def add(unit: PlanUnit) -> None:
        found = [store(unit, taskset(name, size))[0] for name, size in sizes.items()]
        own = found[0]
        run = RunRecord(
            planner.run_id, "r", spec, Split.TRAIN, own.digest, RunState.RUNNING, planner.now, own.num_tasks,
            source_digest=own.name,
        )  # fmt: skip
        unit.add_run(run)
        unit.mixes.add(rows_of(run.run_id, found, list(sizes)))

    await planner.do(add)


async def begin(planner: PlannerHarness, spec: RunSpec, sizes: Mapping[str, int] = BOTH) -> None:
    await submit(planner, spec, sizes)
    await planner.plan_all()


async def rows(planner: PlannerHarness) -> dict[str, MixedRow]:
    found = await planner.do(lambda unit: unit.mixes.of(planner.run_id))
    return {row.name: row for row in found}


async def groups(planner: PlannerHarness) -> list[tuple[str, int, bool]]:
    """Taskset and task of each group, in order, and whether it is guided."""
    found = {
        one.group_id: (one.taskset, one.task_position, bool(one.guided_after))
        for one in await planner.episodes()
    }
    return [found[name] for name in sorted(found)]


async def go_on(planner: PlannerHarness, count: int, **rewards: float) -> None:
    """Play so many groups in order; each trains, unless its taskset's reward is given: then all are alike."""
    for group in range(count):
        name = (await groups(planner))[group][0]
        if name in rewards:
            await play(planner, group, rewards[name], rewards[name])
        else:
            await play(planner, group, 1.0, 0.0, outcome="trained")
        await planner.plan_all()


async def test_groups_of_each_taskset_have_its_share_and_its_tasks_their_turns(
    planner: PlannerHarness,
) -> None:
    await begin(planner, mixed("b:share=0.25"))
    await go_on(planner, 36)
    found = await groups(planner)
    assert [name for name, *_ in found[:8]] == ["ts", "ts", "b", "ts"] * 2
    assert Counter(name for name, *_ in found[:36]) == {"ts": 27, "b": 9}
    for name, size in BOTH.items():
        tasks = [task for one, task, _ in found if one == name]
        rounds = [tasks[at : at + size] for at in range(0, len(tasks) - size + 1, size)]
        assert all(sorted(one) == list(range(size)) for one in rounds), "each once per epoch of its own"
    await check_conservation(planner)


async def test_each_taskset_counts_its_groups_and_episodes(planner: PlannerHarness) -> None:
    await begin(planner, mixed("b:share=0.5"))
    await go_on(planner, 8, b=0.5)
    found = await rows(planner)
    assert (found["ts"].num_groups, found["ts"].num_trained, found["ts"].num_left_out) == (6, 4, 0)
    assert (found["b"].num_groups, found["b"].num_trained, found["b"].num_left_out) == (6, 0, 4)
    assert (found["b"].num_in_a_row, found["ts"].num_in_a_row) == (4, 0)
    assert (found["b"].num_graded, found["b"].num_successes, found["b"].reward_sum) == (8, 0, 4.0)
    assert (found["ts"].num_graded, found["ts"].num_successes, found["ts"].reward_sum) == (8, 4, 4.0)
    run = await planner.run()
    assert run.num_graded == sum(row.num_graded for row in found.values())
    (first, second) = (await planner.do(lambda unit: view_of(unit, run))).mix
    assert (first.row.name, first.share, second.share) == ("ts", Fraction(1, 2), Fraction(1, 2))


async def test_an_episode_is_played_and_judged_by_the_source_of_its_taskset(planner: PlannerHarness) -> None:
    await begin(planner, mixed("b:share=0.5"))
    planned = SqlPlannedEpisodes(planner.database, now=lambda: planner.now)
    order = [name for name, *_ in await groups(planner)]
    assert order == ["ts", "b", "ts", "b"]
    for group, name in enumerate(order):
        to_play = await planned.to_play(planner.members(group)[1])
        assert (to_play.source.name, to_play.source_digest) == (f"of-{name}", name)


async def test_the_source_of_a_taskset_is_kept_while_a_run_is_there_that_it_judged(
    planner: PlannerHarness,
) -> None:
    await begin(planner, mixed("b:share=0.5"))

    async def used() -> set[str]:
        return set(await planner.do(lambda unit: unit.old_runs.sources_in_use(["ts", "b", "c"])))

    assert await used() == {"ts", "b"}
    gone = sa.update(RUN).values(removed_at=planner.now)
    await planner.database.run(lambda sql: sql.execute(gone))
    assert await used() == set()


async def test_a_restarted_planner_goes_on_with_the_same_tasks(planner: PlannerHarness) -> None:
    """What is next follows from what is stored, a few groups at a time or many."""
    await submit(planner, mixed("b:share=1/3"))
    one_by_one = replace(RULES, groups_per_transaction=1)
    while await planner.do(lambda unit: plan_more(unit, planner.run_id, one_by_one)):
        pass
    await go_on(planner, 12)
    found = await groups(planner)
    assert [name for name, *_ in found] == (["ts", "b", "ts"] * 6)[: len(found)]


async def test_guided_groups_are_of_the_taskset_that_failed_and_count_for_its_share(
    planner: PlannerHarness,
) -> None:
    """Half of the groups are b's, and all of b's fail: what is guided takes the place of b's next ones."""
    await begin(planner, mixed("b:share=0.5", spec=guided_spec(share=0.5)), {"ts": 3, "b": 3})
    await go_on(planner, 24, b=0.0)
    found = await groups(planner)
    guided = [name for name, _, is_guided in found if is_guided]
    assert guided
    assert set(guided) == {"b"}
    counts = Counter(name for name, *_ in found)
    assert abs(counts["b"] - counts["ts"]) <= OPEN, "a group is guided whatever the shares are just then"
    row = (await rows(planner))["b"]
    assert (row.num_groups, row.num_guided) == (counts["b"], len(guided))
    tasks = [task for name, task, is_guided in found if name == "b" and not is_guided]
    in_turn = [task for _, task in tasks_from(0, 3, 0, len(tasks))]
    assert tasks == in_turn, "what is guided takes no turn"
    assert row.num_graded < row.num_groups * 2, "guided episodes say nothing of the policy"
    await check_conservation(planner)


async def test_a_sampler_of_tasks_looks_at_each_taskset_by_itself(planner: PlannerHarness) -> None:
    spec = train_spec(no_step_groups=10_000)
    assert spec.training is not None
    spec = replace(spec, training=replace(spec.training, task_sampler="age"))
    await begin(planner, mixed("b:share=0.5", spec=spec), {"ts": 3, "b": 1})
    await go_on(planner, 20)
    found = await groups(planner)
    assert {task for name, task, _ in found if name == "b"} == {0}
    assert {task for name, task, _ in found if name == "ts"} == {0, 1, 2}
    pasts = await planner.do(lambda unit: unit.task_pasts.of(planner.run_id, "b", 0))
    assert pasts[0].trained == 10


async def test_a_run_without_a_limit_takes_the_newest_revision_of_each_taskset(
    planner: PlannerHarness,
) -> None:
    spec = mixed("b:share=0.5", spec=train_spec(steps=0))
    await begin(planner, spec)
    await planner.do(lambda unit: store(unit, taskset("b", 4, start=10)))
    await go_on(planner, 6)
    found = await groups(planner)
    assert [name for name, *_ in found[:5]] == ["ts", "b", "ts", "b", "ts"]
    assert {name for name, *_ in found[5:]} == {"ts", "b@2"}
    row = (await rows(planner))["b"]
    assert (row.taskset, row.num_tasks, row.num_trained) == ("b@2", 4, 3)
    planned = SqlPlannedEpisodes(planner.database, now=lambda: planner.now)
    newest = [one for one in await planner.episodes() if one.taskset == "b@2"][-1]
    assert (await planned.to_play(newest.episode_id)).source_digest == "b"


async def test_a_taskset_that_trains_nothing_is_named(planner: PlannerHarness) -> None:
    await begin(planner, mixed("b:share=0.5"))
    await go_on(planner, 15, b=0.5)
    run = await planner.run()
    assert "mix" not in (await planner.do(lambda unit: view_of(unit, run))).notice
    await play(planner, 15, 0.5, 0.5)
    view = await planner.do(lambda unit: view_of(unit, run))
    assert "taskset 'b' of the mix gives no groups: the last 8 of its" in view.notice
    assert "it has 0.5 of the run's groups" in view.notice


@pytest.mark.parametrize(("in_a_row", "prompts", "share", "expected"), [
    (7, 1, "1/2", False), (8, 1, "1/2", True), (8, 8, "1/2", True), (15, 16, "1/2", False),
    (16, 16, "1/2", True), (8, 16, "1/10", True),
])  # fmt: skip
def test_as_many_groups_as_two_steps_take_say_enough(
    in_a_row: int, prompts: int, share: str, expected: bool
) -> None:
    row = MixedRow("r", 1, "b", "b", 2, num_in_a_row=in_a_row)
    assert gives_nothing(MixReport(row, Fraction(share)), prompts) is expected


def test_the_row_of_an_older_revision_is_found() -> None:
    made = [MixedRow("r", 0, "a", "a@3", 2), MixedRow("r", 1, "b", "b", 2)]
    assert [row_of(made, key).name for key in ("a@3", "a@2", "a", "b")] == ["a", "a", "a", "b"]


@pytest.mark.parametrize(("mix", "says"), [
    (("b:share=0",), "above 0 and at most 1"),
    (("b:share=1.1",), "above 0 and at most 1"),
    (("b",), "is not TASKSET:share=SHARE"),
    (("b:share=0.5", "c:share=0.5"), "the shares add up to 1, which leaves nothing"),
    (("b:share=0.5", "b:share=0.1"), "names 'b' twice"),
    (("b:share=0.5", "b@2:share=0.1"), "names 'b' twice"),
    (("ts:share=0.5",), "names 'ts', which is"),
    (tuple(f"b{n}:share=0.01" for n in range(17)), "names 17 tasksets, limit 16"),
])  # fmt: skip
def test_a_mix_that_makes_no_sense_is_refused(mix: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        mixed(*mix)


def test_a_run_that_plays_nothing_itself_has_no_mix() -> None:
    with pytest.raises(ValidationError, match=r"mix.*and .*no_sampling.* are set"):
        replace(train_spec(), mix=("b:share=0.5",), no_sampling=True)


def test_an_epoch_is_a_pass_over_the_runs_own_taskset() -> None:
    spec = train_spec()
    asked = RunSpec(
        "ts", spec.purpose, spec.policy, 2, mix=("b:share=0.75",),
        training=Training(epochs=3, prompts_per_step=2),
    )  # fmt: skip
    training = asked.in_steps(10).training
    assert training is not None
    assert training.steps == 60, "3 passes over 10 tasks are 30 groups, a quarter of 120"
