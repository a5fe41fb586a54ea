"""`why`: ask all services about a run at once, within a second, and name what it waits for."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from episodes import Purpose
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.explain import explain
from scenario_runner.domain.run_facts import PlanWaits, RunFacts, Supply, WaitReason
from scenario_runner.domain.runs import RunRecord, RunView
from scenario_runner.domain.taskset_checks import TasksetCheck, newest_of_each
from scenario_runner.ports import RunPeers
from scenario_runner.usecases.mixing import idle_outcomes
from scenario_runner.usecases.supply import supply_of
from scenario_runner.usecases.views import find_run, view_of


class ExplainRun:
    """fleet: (environments alive, capacity) of this process. bus_alarms: of its bus, one sentence each.
    failing: what its loops fail at for the run, one sentence each."""

    def __init__(
        self,
        plan: SqlPlan,
        peer_facts: RunPeers,
        *,
        fleet: Callable[[], tuple[int, int]],
        bus_alarms: Callable[[], Sequence[str]] = tuple,
        failing: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._plan = plan
        self._peer_facts = peer_facts
        self._fleet = fleet
        self._bus_alarms = bus_alarms
        self._failing = failing

    async def __call__(self, run_id: str) -> tuple[RunView, list[WaitReason], str]:
        """(the run, causes, one sentence). Raises NotFound."""
        view, waits, supply, outbox_waiting = await self._plan.read(lambda unit: _own_facts(unit, run_id))
        checks, guidance_kinds = await self._plan.read(lambda unit: _checks_and_kinds(unit, run_id))
        peers = self._peer_facts
        purpose, model = view.run.spec.purpose, view.run.spec.policy.model
        engines, ledger, session, durables, reward_alarms, (num_confirmed, waiting) = await asyncio.gather(
            peers.engines(model),
            peers.ledger(run_id),
            peers.session(run_id),
            peers.durables(purpose, model),
            peers.reward_alarms(run_id),
            _of_promotions(peers, view.run),
        )
        alive, capacity = self._fleet()
        facts = RunFacts(
            view=view,
            waits=waits,
            fleet_alive=alive,
            fleet_capacity=capacity,
            outbox_waiting=outbox_waiting,
            engines=engines,
            sampler=durables.get("sampler"),
            grader=durables.get("grader"),
            planner=durables.get("planner"),
            ledger=ledger,
            session=session,
            supply=supply,
            bus_alarms=self._bus_alarms(),
            reward_alarms=reward_alarms,
            num_confirmed=num_confirmed,
            waiting_candidates=waiting,
            planner_fails=self._failing(run_id),
            checks=checks,
            guidance_kinds=guidance_kinds,
        )
        return view, *explain(facts)


async def _of_promotions(peers: RunPeers, run: RunRecord) -> tuple[int | None, Sequence[str]]:
    """(how many trajectories are confirmed, its candidates that wait for their alarms)."""
    gate = run.spec.gate
    if gate is None:
        return None, ()
    return await asyncio.gather(
        peers.num_confirmed(run.run_id, gate.require_review),
        peers.waiting_candidates(run.spec.policy.model, run.run_id),
    )


def _checks_and_kinds(unit: PlanUnit, run_id: str) -> tuple[list[TasksetCheck], dict[str, int]]:
    """(checks of every taskset that the run plays and of the one that its gate judges by, its guided groups
    by kind)."""
    run = find_run(unit, run_id)
    gate = unit.taskset(run.spec.gate.taskset) if run.spec.gate is not None else None
    judging = {gate.key} if gate is not None else set()
    mixed = {row.taskset for row in unit.mixes.of(run_id)}
    checks = newest_of_each(unit.checks.of({run.taskset} | mixed | judging))
    return checks, unit.task_pasts.guidance_kinds(run_id) if run.num_guided else {}


def _own_facts(unit: PlanUnit, run_id: str) -> tuple[RunView, PlanWaits, Supply, int]:
    run, waits = find_run(unit, run_id), unit.waits(run_id)
    if run.spec.purpose is Purpose.TRAIN:
        num_in_step = unit.num_in_step(run_id, run.step)
        waits = replace(
            waits,
            without_step=unit.without_step(run),
            num_in_step=num_in_step,
            idle_outcomes=idle_outcomes(unit, run),
        )
    return view_of(unit, run), waits, supply_of(unit, run), unit.outbox_waiting(run.spec.policy.model)
