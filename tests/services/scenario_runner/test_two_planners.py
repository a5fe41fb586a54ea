"""Two planners on one database: what both decide at once is decided once."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.services.scenario_runner import planning
from tests.services.scenario_runner.planning import RULES, PlannerHarness
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, settled, train_spec

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.facts import Advanced, GroupSettled
from scenario_runner.domain.runs import EpisodeState, Refused, RunState, RunView
from scenario_runner.usecases.overdue import MARGIN_S
from scenario_runner.usecases.planning import apply_facts
from scenario_runner.usecases.submitting import SubmitRun, TraceContext
from scenario_runner.usecases.supply import offer_more
from sql_store import Database


@asynccontextmanager
async def second_plan(planner: PlannerHarness, sql_url: str) -> AsyncIterator[SqlPlan]:
    """The plan of a second planner on the same database."""
    database = Database(sql_url)
    await database.start()
    yield SqlPlan(database, now=lambda: planner.now)
    await database.stop()


@pytest.fixture
async def plans(sources: SourcesHarness, sql_url: str) -> AsyncIterator[list[SqlPlan]]:
    """The plan of the first planner, and that of a second one."""
    async with second_plan(sources.planner, sql_url) as other:
        yield [sources.planner.plan, other]


async def submitted(sources: SourcesHarness, plans: list[SqlPlan], request_ids: list[str]) -> list[object]:
    """What becomes of submissions of training runs of one model, all at once, over both planners."""

    async def submit(number: int, request_id: str) -> RunView:
        use = SubmitRun(
            plans[number % 2], sources.registry, new_id=lambda kind: f"{kind}-x{number}", wake=lambda: None
        )
        return await use(request_id, train_spec(), TraceContext("", {}))

    asked = (submit(number, request_id) for number, request_id in enumerate(request_ids))
    return list(await asyncio.gather(*asked, return_exceptions=True))


async def test_no_planner_reads_what_another_one_is_about_to_write(
    sources: SourcesHarness, plans: list[SqlPlan]
) -> None:
    """Each of 8 reads a number beside the row that it locks, and adds one: none is lost."""
    run_id = await sources.submit(eval_spec())

    def adds_one(unit: PlanUnit) -> None:
        step = max(run.step for run in unit.active_runs())
        time.sleep(0.02)
        run = unit.run(run_id)
        assert run is not None
        unit.update_run(replace(run, step=step + 1))

    await asyncio.gather(*(plan.transact(adds_one) for plan in plans * 4))
    assert (await sources.run(run_id)).step == 8


async def test_the_same_batch_at_two_planners_counts_once(planner: PlannerHarness, sql_url: str) -> None:
    """Redelivered to the second planner while the first one is at it: 2 groups of 2, every reward 1."""
    await planner.begin(planning.eval_spec(), 4)
    facts = [planner.graded(episode) for group in (0, 1) for episode in planner.members(group)]
    async with second_plan(planner, sql_url) as other:
        await asyncio.gather(
            *(plan.transact(lambda unit: apply_facts(unit, facts)) for plan in (planner.plan, other) * 2)
        )
    run, rows = await planner.run(), await planner.episodes()
    assert sum(row.state is EpisodeState.EVALUATED for row in rows) == 4
    assert (run.num_graded, run.reward_sum) == (4, 4.0)
    await planning.check_conservation(planner)


@pytest.mark.parametrize("first", ["grade", "sweep"])
async def test_a_grade_beside_a_sweep_is_either_in_time_or_too_late(
    planner: PlannerHarness, sql_url: str, first: str
) -> None:
    await planner.begin(planning.train_spec(prompts=1, staleness=0), 4)
    members = planner.members(0)
    await planner.do(lambda unit: unit.note_opened(members))
    planner.now += timedelta(seconds=planning.train_spec().episode_deadline_s + MARGIN_S + 1)

    def grade(unit: PlanUnit) -> None:
        unit.prefetch([planner.group_id(0)])
        time.sleep(0.05 if first == "sweep" else 0.2)
        apply_facts(unit, [planner.graded(episode) for episode in members])

    def overdue(unit: PlanUnit) -> None:
        unit.prefetch([planner.group_id(0)])
        time.sleep(0.2 if first == "sweep" else 0.05)
        planning.swept(unit, planner.run_id)

    async with second_plan(planner, sql_url) as other:
        await asyncio.gather(planner.plan.transact(grade), other.transact(overdue))
    rows = {row.episode_id: row.state for row in await planner.episodes()}
    assert [rows[episode] for episode in members] == [EpisodeState.GRADED] * 2
    assert {state for row, state in rows.items() if row not in members} <= {EpisodeState.CANCELLED}
    assert (await planner.run()).num_graded == 2
    await planning.check_conservation(planner)


async def test_the_database_refuses_a_second_training_run_of_a_model(
    sources: SourcesHarness, plans: list[SqlPlan]
) -> None:
    """Of planners that do not take turns, as one of an older version does not."""

    class OutOfTurn(SqlPlan):
        async def transact(self, work: Callable[[PlanUnit], Any], **_: object) -> Any:
            def slowly(unit: PlanUnit) -> Any:
                result = work(unit)
                time.sleep(0.1)
                return result

            return await super().transact(slowly, turn=str(id(self)))

    strangers: list[SqlPlan] = [OutOfTurn(plan._database, now=lambda: sources.planner.now) for plan in plans]
    got = await submitted(sources, strangers, ["one", "two"])
    assert sorted(type(one).__name__ for one in got) == ["Refused", "RunView"], got


async def test_a_reader_waits_for_no_writer_and_sees_one_instant(
    sources: SourcesHarness, plans: list[SqlPlan], sql_url: str
) -> None:
    if sql_url.startswith("sqlite"):
        pytest.skip("SQLite has one connection")
    await sources.submit(eval_spec())
    is_written, go_on = threading.Event(), threading.Event()

    def write(unit: PlanUnit) -> None:
        run = unit.active_runs()[0]
        unit.update_run(replace(run, step=7))
        unit.flush()
        is_written.set()
        assert go_on.wait(60)

    def read(unit: PlanUnit) -> tuple[int, int]:
        before = unit.active_runs()[0].step
        go_on.set()
        deadline = time.monotonic() + 60
        while not writing.done() and time.monotonic() < deadline:
            time.sleep(0.01)
        return before, unit.active_runs()[0].step

    writing = asyncio.create_task(plans[0].transact(write))
    assert await asyncio.to_thread(is_written.wait, 60)
    assert await plans[1].read(read) == (0, 0)
    assert (await plans[1].read(lambda unit: unit.active_runs()))[0].step == 7


async def test_one_model_is_never_trained_by_two_runs(sources: SourcesHarness, plans: list[SqlPlan]) -> None:
    got = await submitted(sources, plans, [f"request-{number}" for number in range(6)])
    accepted = [one for one in got if isinstance(one, RunView)]
    assert len(accepted) == 1
    assert [type(one) for one in got if not isinstance(one, RunView)] == [Refused] * 5


async def test_one_request_id_makes_one_run(sources: SourcesHarness, plans: list[SqlPlan]) -> None:
    got = await submitted(sources, plans, ["request"] * 6)
    assert len({one.run.run_id for one in got if isinstance(one, RunView)}) == 1, got
    assert not [one for one in got if isinstance(one, Exception)]


async def test_a_group_that_turns_out_trained_while_it_is_offered_again_is_left_out(
    sources: SourcesHarness, plans: list[SqlPlan]
) -> None:
    evaluation = await sources.evaluation()
    first = await sources.submit(train_spec(evaluation, steps=1, sampling=False))
    await sources.plan(first)
    group = (await sources.offers(first))[0].group_id
    await sources.planner.apply(Advanced(first, 1, 5))
    await sources.planner.apply(
        *(settled(first, one.group_id, "released", source=evaluation) for one in await sources.offers(first))
    )
    second = await sources.submit(train_spec(evaluation, steps=1, sampling=False))

    is_settling = threading.Event()

    def settles_late(unit: PlanUnit) -> None:
        apply_facts(unit, [settled(first, group, source=evaluation)])
        is_settling.set()
        time.sleep(0.5)  # the other planner offers meanwhile

    async def offers() -> int:
        assert await asyncio.to_thread(is_settling.wait, 60)
        return await plans[1].transact(lambda unit: offer_more(unit, second, RULES))

    await asyncio.gather(plans[0].transact(settles_late), offers())
    offered = [one.group_id for one in await sources.offers(second)]
    assert group not in offered
    assert (await sources.report(second, evaluation)).left_out == {"already_trained": 1}


async def test_a_last_step_read_before_its_settlements_releases_no_trained_group(
    sources: SourcesHarness, plans: list[SqlPlan]
) -> None:
    """One planner has not committed the settlements when the other one receives step.completed."""
    evaluation = await sources.evaluation()
    first = await sources.submit(train_spec(evaluation, steps=1, sampling=False))
    await sources.plan(first)
    trained, *others = [one.group_id for one in await sources.offers(first)]
    await sources.planner.apply(Advanced(first, 1, 5))
    assert (await sources.run(first)).state is RunState.DRAINING
    # The stream has the trainer's word about the first group, and keeps the planner's about the others.
    await sources.planner.apply(settled(first, trained, source=evaluation))
    said = [fact for fact in await sources.settled_by_planner() if isinstance(fact, GroupSettled)]
    await sources.planner.apply(*(fact for fact in said if fact.group_id in others))
    assert (await sources.run(first)).state is RunState.COMPLETED
    second = await sources.submit(train_spec(evaluation, steps=1, sampling=False))
    await sources.plan(second)
    assert trained not in [one.group_id for one in await sources.offers(second)]


async def test_the_last_step_ends_a_run_only_once_the_steps_before_it_are_read(
    planner: PlannerHarness,
) -> None:
    """One planner reads the last step while the other one is at the step before it."""
    await planner.begin(planning.train_spec(prompts=1, staleness=1, steps=2), 4)
    members = [planner.members(group) for group in range(2)]
    await planner.apply(*(planner.graded(episode) for group in members for episode in group))
    steps = [Advanced(planner.run_id, step + 1, step + 1, 0.0, tuple(members[step])) for step in range(2)]
    await planner.apply(steps[1])
    assert (await planner.run()).state is RunState.RUNNING
    await planner.sweep()
    await planner.apply(steps[0])
    rows = {row.episode_id: row.state for row in await planner.episodes()}
    assert {rows[episode] for group in members for episode in group} == {EpisodeState.TRAINED}
    run = await planner.run()
    assert (run.state, run.step) == (RunState.COMPLETED, 2)
    await planning.check_conservation(planner)
