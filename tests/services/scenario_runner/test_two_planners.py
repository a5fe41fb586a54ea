"""Two planners on one database: what both decide at once is decided once."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.services.scenario_runner.planning import RULES, PlannerHarness
from tests.services.scenario_runner.source_runs import SourcesHarness, settled, train_spec

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.facts import Advanced, GroupSettled
from scenario_runner.domain.runs import Refused, RunState, RunView
from scenario_runner.usecases.planning import apply_facts
from scenario_runner.usecases.submitting import SubmitRun, TraceContext
from scenario_runner.usecases.supply import offer_more
from sql_store import Database


@pytest.fixture
async def sources(planner: PlannerHarness) -> SourcesHarness:
    made = SourcesHarness(planner)
    await made.register()
    return made


@pytest.fixture
async def plans(sources: SourcesHarness, sql_url: str) -> AsyncIterator[list[SqlPlan]]:
    """The plan of the first planner, and that of a second one."""
    database = Database(sql_url)
    await database.start()
    yield [sources.planner.plan, SqlPlan(database, now=lambda: sources.planner.now)]
    await database.stop()


async def submitted(sources: SourcesHarness, plans: list[SqlPlan], request_ids: list[str]) -> list[object]:
    """What becomes of submissions of training runs of one model, all at once, over both planners."""

    async def submit(number: int, request_id: str) -> RunView:
        use = SubmitRun(
            plans[number % 2], sources.registry, new_id=lambda kind: f"{kind}-x{number}", wake=lambda: None
        )
        return await use(request_id, train_spec(), TraceContext("", {}))

    asked = (submit(number, request_id) for number, request_id in enumerate(request_ids))
    return list(await asyncio.gather(*asked, return_exceptions=True))


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

    def settles_late(unit: PlanUnit) -> None:
        apply_facts(unit, [settled(first, group, source=evaluation)])
        time.sleep(0.5)  # the other planner offers meanwhile

    async def offers() -> int:
        await asyncio.sleep(0.1)
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
