"""New tasks in the planner: of which tasks they are ordered, which are never played, and how they count."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, eval_spec, train_spec
from tests.services.scenario_runner.test_explaining import run_facts

from episodes import Split
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.environments import (
    EnvironmentKilled,
    EnvironmentLost,
    EpisodeFault,
    GeneratedTask,
    TaskOrder,
)
from scenario_runner.domain.explain import explain
from scenario_runner.domain.new_tasks import (
    NewTaskRow,
    NewTasksReport,
    NewTaskState,
    most_open,
    orders_one,
    turns_of_new,
)
from scenario_runner.domain.retention import RunSummary
from scenario_runner.usecases.generating import MakeTasks
from scenario_runner.usecases.views import find_run, view_of
from scenario_runner.wire.new_tasks import new_tasks_to_wire
from upcycle.errors import Unavailable
from upcycle.run_config import RunSpec, Training
from upcycle.task_rows import task_digest

FLAT = "excluded(zero_spread)"
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "by": {"type": "integer", "default": 1}},
    "additionalProperties": False,
}


class Generator:
    """Implements GeneratorHost: arguments of each order, or what it raises. Keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.asked: list[TaskOrder] = []

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        self.asked.append(order)
        answer = self.answers.pop(0) if self.answers else {"n": len(self.asked)}
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return GeneratedTask(answer, SCHEMA)


class Made:
    """A planner, and its orders filled by the test."""

    def __init__(self, planner: PlannerHarness) -> None:
        self.planner = planner
        self.generator = Generator()
        self.woken = 0
        self.noted: Counter[NewTaskState] = Counter()
        self.make = MakeTasks(planner.plan, self.generator, wake=self._wake, note=self._note)

    def _wake(self) -> None:
        self.woken += 1

    def _note(self, state: NewTaskState) -> None:
        self.noted[state] += 1

    async def begin(self, spec: RunSpec) -> None:
        await self.planner.begin(spec, num_tasks=3)

    async def play(self, group: int, *rewards: float, outcome: str = "excluded") -> None:
        """Grade a group of two, have the trainer settle it, fill the orders and plan what may be."""
        names = self.planner.members(group)
        facts = [self.planner.graded(name, one) for name, one in zip(names, rewards, strict=True)]
        await self.planner.apply(*facts)
        await self.planner.apply(self.planner.settled(self.planner.group_id(group), names, outcome))
        await self.make()
        await self.planner.plan_all()

    async def report(self) -> NewTasksReport:
        return await self.planner.do(lambda unit: unit.new_tasks.report(self.planner.run_id))

    async def played(self) -> dict[int, int | None]:
        """The new task of each group of the run; None: it plays one of the taskset."""
        return {int(one.group_id[-5:]): one.new_task for one in await self.planner.episodes()}


@pytest.fixture
def made(planner: PlannerHarness) -> Made:
    return Made(planner)


def new_spec(new_tasks: str = "failed", share: float = 0.5, retire_after: int = 2) -> RunSpec:
    spec = train_spec(no_step_groups=10_000)
    assert spec.training is not None
    chosen: dict[str, Any] = {
        "new_tasks": new_tasks,
        "new_tasks_share": share,
        "new_tasks_retire_after": retire_after,
    }
    return replace(spec, training=replace(spec.training, **chosen))


@pytest.mark.parametrize(
    ("new_tasks", "outcome", "successes", "orders"),
    [
        ("failed", FLAT, [False, False], True),
        ("failed", FLAT, [True, True], False),
        ("failed", FLAT, [True, False], False),
        ("failed", FLAT, [], False),
        ("failed", "trained", [False, False], False),
        ("failed", "excluded(stale)", [False, False], False),
        ("solved", FLAT, [True, True], True),
        ("solved", "trained", [True, True], True),
        ("solved", "trained", [True, False], False),
        ("solved", FLAT, [False, False], False),
        ("solved", "excluded(stale)", [True, True], False),
        ("off", FLAT, [False, False], False),
    ],
)
def test_of_which_groups_a_run_orders(
    new_tasks: str, outcome: str, successes: list[bool], *, orders: bool
) -> None:
    assert orders_one(Training(new_tasks=new_tasks), outcome, successes) is orders


def test_the_turns_of_new_tasks_are_spread_and_not_made_up_for() -> None:
    assert turns_of_new(0.25, range(12)) == [3, 7, 11]
    assert turns_of_new(0.1, range(40)) == [9, 19, 29, 39]
    assert turns_of_new(1.0, range(3)) == [0, 1, 2]
    assert turns_of_new(0.25, [3, 4, 6]) == [3]
    assert len(turns_of_new(1 / 3, range(9000))) == 3000


def test_as_many_are_open_as_some_steps_play() -> None:
    assert most_open(Training(new_tasks="failed", prompts_per_step=16)) == 16
    assert most_open(Training(new_tasks="failed", prompts_per_step=1)) == 4


async def test_a_task_that_all_failed_is_made_another_of_which_is_played(made: Made) -> None:
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)
    (asked,) = made.generator.asked
    failed = await made.planner.do(lambda unit: unit.group(made.planner.group_id(0)))
    assert failed is not None
    assert (asked.scenario, asked.args_json, asked.solved) == ("s", "{}", False)
    assert await made.played() == {0: None, 1: None, 2: None, 3: None, 4: None}
    assert (made.woken, made.noted) == (1, {NewTaskState.PLAYING: 1})
    await made.play(1, 1.0, 0.0, outcome="trained")
    assert (await made.played())[5] == 0
    (row,) = (await made.report()).newest
    digest = task_digest("e", "s", '{"n":1}')
    assert (row.slug, row.args_json, row.family) == (f"new-0-{digest[:8]}", '{"n":1}', "default")
    assert (row.parent_slug, row.task_position) == (f"t{failed.task_position}", failed.task_position)
    assert (await made.planner.do(lambda unit: unit.splits([digest])))[digest] is Split.TRAIN
    await check_conservation(made.planner)


async def test_the_fleet_and_the_results_see_the_new_task(made: Made) -> None:
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)
    await made.play(1, 1.0, 0.0, outcome="trained")
    episode = made.planner.members(5)[0]
    planned = SqlPlannedEpisodes(made.planner.database, now=lambda: made.planner.now)
    assert (await planned.to_play(episode)).args_json == '{"n":1}'
    assert (await planned.to_play(made.planner.members(2)[0])).args_json == "{}"
    rows = {row.episode_id: row for row in await made.planner.episodes()}
    task = await made.planner.do(lambda unit: unit.task_of(rows[episode]))
    assert task.args_json == '{"n":1}'


async def test_new_tasks_count_apart_from_those_of_the_taskset(made: Made) -> None:
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)
    await made.play(1, 1.0, 0.0, outcome="trained")
    before = await made.planner.run()
    await made.play(5, 1.0, 0.0, outcome="trained")
    run = await made.planner.run()
    assert (run.num_graded, run.num_successes) == (before.num_graded, before.num_successes) == (4, 1)
    report = await made.report()
    assert (report.num_groups, report.num_trained, report.num_graded, report.num_successes) == (1, 1, 2, 1)
    assert run.num_new == 1
    pasts = await made.planner.do(lambda unit: unit.task_pasts.of(run.run_id, run.taskset, 0))
    assert sum(past.trained for past in pasts.values()) == 1
    await check_conservation(made.planner)


async def test_the_tasks_of_the_taskset_keep_their_order(made: Made) -> None:
    """Every one is played once per epoch, whatever new ones are played between."""
    await made.begin(new_spec())
    for group in range(12):
        await made.play(group, 0.0, 0.0)
    groups = {one.group_id: one for one in await made.planner.episodes()}
    own = [groups[name].task_position for name in sorted(groups) if groups[name].new_task is None]
    assert sum(one.new_task is not None for one in groups.values()) >= 5
    assert all(sorted(own[at : at + 3]) == [0, 1, 2] for at in range(0, len(own) - 2, 3))


async def test_a_new_task_without_spread_is_retired_and_played_no_more(made: Made) -> None:
    await made.begin(new_spec(share=1.0, retire_after=2))
    await made.play(0, 0.0, 0.0)
    in_a_row = []
    for group, rewards in ((4, (1.0, 1.0)), (5, (1.0, 0.0)), (6, (1.0, 1.0)), (7, (1.0, 1.0))):
        assert (await made.played())[group] == 0
        await made.play(group, *rewards, outcome="excluded" if rewards[1] else "trained")
        (row,) = (await made.report()).newest
        in_a_row.append(row.num_in_a_row)
    assert in_a_row == [1, 0, 1, 2], "what teaches again counts from the start"
    assert (row.state, row.detail) == (NewTaskState.RETIRED, "2 groups in a row had no spread")
    await made.play(1, 1.0, 0.0, outcome="trained")
    played = await made.played()
    assert played[max(played)] is None


async def test_a_failed_new_task_is_a_parent_too_and_keeps_its_descent(made: Made) -> None:
    await made.begin(new_spec(share=1.0))
    await made.play(0, 0.0, 0.0)
    await made.play(1, 1.0, 0.0, outcome="trained")
    await made.play(5, 0.0, 0.0)
    child, parent = (await made.report()).newest
    assert (child.parent_slug, child.parent_digest) == (parent.slug, parent.digest)
    assert child.task_position == parent.task_position
    assert made.generator.asked[1].args_json == '{"n":1}'
    assert child.seed != parent.seed


async def test_a_held_out_task_is_never_played_however_it_is_written(made: Made) -> None:
    await made.begin(new_spec())
    held_out = task_digest("e", "s", '{"by":1,"n":7}')
    await made.planner.do(lambda unit: unit.claim([held_out], Split.HELD_OUT, "taskset gate"))
    made.generator.answers = [{"n": 7}]
    await made.play(0, 0.0, 0.0)
    (row,) = (await made.report()).newest
    assert (row.state, row.slug) == (NewTaskState.HELD_OUT, "")
    assert row.detail == f"task {held_out[:12]} is of split held_out: taskset gate claimed it"
    await made.play(1, 1.0, 0.0, outcome="trained")
    assert set((await made.played()).values()) == {None}
    mine = task_digest("e", "s", '{"n":7}')
    assert (await made.planner.do(lambda unit: unit.splits([mine])))[mine] is Split.UNASSIGNED


async def test_what_a_run_has_already_is_not_played_twice(made: Made) -> None:
    await made.begin(new_spec())
    made.generator.answers = [{"n": 7}, {"n": 7, "by": 1}]
    await made.play(0, 0.0, 0.0)
    await made.play(1, 0.0, 0.0)
    second, first = (await made.report()).newest
    assert first.state is NewTaskState.PLAYING
    assert (second.state, second.detail) == (NewTaskState.DUPLICATE, f"the run has it already: {first.slug}")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (EpisodeFault("scenario_error", "the generator of scenario 's' raised"), "raised"),
        (EnvironmentKilled("killed by signal 9"), "signal 9"),
        ({"m": 1}, "the generator of scenario 's' made no task: it has no argument 'm'"),
        ({"n": "a"}, "argument 'n' is 'a', expected"),
        ({"n": float("nan")}, "JSON cannot carry this"),
        ({"n": 1, "by": "x" * 70_000}, "bytes, limit 65536"),
    ],
)
async def test_what_is_no_task_is_dropped_with_its_reason(made: Made, answer: object, says: str) -> None:
    await made.begin(new_spec())
    made.generator.answers = [answer]
    await made.play(0, 0.0, 0.0)
    (row,) = (await made.report()).newest
    assert row.state is NewTaskState.FAILED
    assert says in row.detail
    await made.make()
    assert len(made.generator.asked) == 1, "an order is answered once"


async def test_an_environment_that_is_lost_is_asked_again(made: Made) -> None:
    await made.begin(new_spec())
    made.generator.answers = [EnvironmentLost("hung up")]
    with pytest.raises(Unavailable, match="hung up"):
        await made.play(0, 0.0, 0.0)
    await made.make()
    assert [one.seed for one in made.generator.asked] == [made.generator.asked[0].seed] * 2
    assert (await made.report()).by_state == {NewTaskState.PLAYING: 1}


async def test_facts_that_come_twice_order_one(made: Made) -> None:
    await made.begin(new_spec())
    for _ in range(2):
        await made.play(0, 0.0, 0.0)
    assert (await made.report()).num_ordered == 1


async def test_no_more_are_ordered_than_may_be_open(made: Made) -> None:
    await made.begin(new_spec(share=0.1))
    for group in range(8):
        await made.play(group, 0.0, 0.0)
    report = await made.report()
    assert report.by_state[NewTaskState.PLAYING] == 4


async def test_a_run_that_ends_orders_and_makes_none(made: Made) -> None:
    await made.begin(new_spec())
    names = made.planner.members(0)
    await made.planner.apply(*(made.planner.graded(name, 0.0) for name in names))
    await made.planner.apply(made.planner.settled(made.planner.group_id(0), names, "excluded"))
    await made.planner.stop()
    await made.make()
    assert made.generator.asked == []
    await made.play(1, 0.0, 0.0)
    assert (await made.report()).by_state == {NewTaskState.WANTED: 1}


async def test_without_the_option_and_in_an_evaluation_nothing_is_ordered(made: Made) -> None:
    await made.begin(eval_spec())
    await made.play(0, 0.0, 0.0)
    assert (await made.report()).num_ordered == 0
    run = await made.planner.run()
    assert (await made.planner.do(lambda unit: view_of(unit, run))).new_tasks is None


async def test_counted_again_from_its_rows_a_run_has_the_same_numbers(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)
    await made.play(1, 1.0, 0.0, outcome="trained")
    await made.play(5, 1.0, 1.0)
    await made.planner.stop()
    await made.planner.sweep()
    assert "run_was_miscounted" not in caplog.text


async def test_a_run_says_what_its_generators_made(made: Made) -> None:
    await made.begin(new_spec())
    made.generator.answers = [{"n": 7}, {"m": 1}]
    await made.play(0, 0.0, 0.0)
    await made.play(1, 0.0, 0.0)
    message = new_tasks_to_wire(await made.report())
    assert (message.ordered, message.playing, message.failed, message.groups) == (2, 1, 1, 1)
    newest, oldest = message.newest
    assert (newest.state, newest.slug) == ("failed", "")
    assert "has no argument 'm'" in newest.detail
    assert message.last_failure == newest.detail
    assert json.loads(oldest.args_json) == {"n": 7}
    assert oldest.parent_slug == f"t{oldest.parent_digest[-1]}"


async def test_of_a_run_whose_rows_were_removed_no_zeros_are_reported(made: Made) -> None:
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)

    run_id = made.planner.run_id

    def remove(unit: PlanUnit) -> None:
        unit.old_runs.remove(run_id, RunSummary(unit.counts(run_id), [], "old"), unit.now)

    await made.planner.do(remove)
    view = await made.planner.do(lambda unit: view_of(unit, find_run(unit, run_id)))
    assert view.new_tasks is None


def row(number: int) -> NewTaskRow:
    return NewTaskRow("r", number, "ts", 0, "s", "f", 1, "t0", "0", "{}", solved=False)


def test_orders_of_which_none_comes_are_an_alarm() -> None:
    failed = tuple(row(n).dropped(NewTaskState.FAILED, f"no {n}") for n in range(8))
    report = NewTasksReport({NewTaskState.FAILED: 8}, newest=(row(8), *failed))
    found = run_facts()

    def alarms(report: NewTasksReport) -> list[str]:
        said, _ = explain(replace(found, view=replace(found.view, new_tasks=report)))
        return [one.what for one in said if "new tasks" in one.what]

    assert alarms(report) == [
        "alarm: none of the last 8 new tasks that were ordered is played; the newest, of 't0': failed, no 0"
    ], "one that is on its way says nothing"
    came = replace(report, newest=(*failed[:3], row(9).made("{}", "d" * 64), *failed[3:]))
    assert alarms(came) == []


def test_a_run_that_plays_new_tasks_says_how_many() -> None:
    found = run_facts()
    by_state = {NewTaskState.PLAYING: 2, NewTaskState.RETIRED: 3}
    view = replace(found.view, new_tasks=NewTasksReport(by_state, num_groups=6))
    view = replace(view, run=replace(view.run, next_position=20))
    _, summary = explain(replace(found, view=view))
    assert "; 6 of 20 groups are on new tasks, of which 5 were ordered and 2 are playing" in summary
