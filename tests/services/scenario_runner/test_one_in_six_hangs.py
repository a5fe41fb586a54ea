"""One task in six hangs each time: the run ends, and `why` does not call it well while it stands still."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

from tests.services.scenario_runner.planning import PlannerHarness, eval_spec

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.explain import explain
from scenario_runner.domain.peer_facts import DurableFact, EngineFact
from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.usecases.explaining import _own_facts
from scenario_runner.usecases.overdue import MARGIN_S

DEADLINE_S = 10
NUM_TASKS = 36
IDLE = DurableFact(num_pending=0, num_unacknowledged=0, num_pulling=5)
ENGINE = EngineFact("e1", "latest", 1, (), True, "ready")


async def why(planner: PlannerHarness) -> tuple[list[WaitReason], str]:
    """What `why` says where every other service is well."""
    view, waits, supply, outbox_waiting = await planner.do(lambda unit: _own_facts(unit, planner.run_id))
    facts = RunFacts(
        view=view,
        waits=waits,
        fleet_alive=0,
        fleet_capacity=1024,
        outbox_waiting=outbox_waiting,
        engines=[ENGINE],
        sampler=IDLE,
        grader=IDLE,
        planner=IDLE,
        ledger={},
        session=None,
        supply=supply,
    )
    return explain(facts)


async def test_a_run_that_nothing_holds_up_has_episodes_in_flight(planner: PlannerHarness) -> None:
    """It hung with "nothing is stuck: 0 in flight": each hanging task kept its group open for ever."""
    await planner.begin(replace(eval_spec(group_size=1), episode_deadline_s=DEADLINE_S), NUM_TASKS)
    while unsettled := [row for row in await planner.episodes() if row.is_unsettled]:
        hanging = [row.episode_id for row in unsettled if row.task_position % 6 == 0]
        await planner.apply(*(planner.graded(row.episode_id) for row in unsettled if row.task_position % 6))
        await planner.do(partial(PlanUnit.note_opened, episode_ids=hanging))
        planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
        await planner.sweep()
        await planner.plan_all()
        reasons, summary = await why(planner)
        assert reasons or "0 in flight" not in summary
    assert await why(planner) == ([], "is completed")
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    assert counts.groups_by_outcome == {"evaluated": NUM_TASKS * 5 // 6, "failed": NUM_TASKS // 6}
