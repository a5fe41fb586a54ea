"""The loops of the service: planning, sweeping, and housekeeping of leases."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from episodes import Purpose
from scenario_runner import telemetry
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.peers import BusGauge, PeerFacts
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.facts import Fact
from scenario_runner.domain.peer_facts import GraderBacklog
from scenario_runner.domain.runs import RunRecord
from scenario_runner.ports import PlannedEpisodes
from scenario_runner.usecases.arriving_sessions import TakeSessions
from scenario_runner.usecases.generating import MakeTasks
from scenario_runner.usecases.leak_scanning import ScanForLeaks
from scenario_runner.usecases.leases import Leases
from scenario_runner.usecases.overdue import has_unopened, overdue, overdue_ids
from scenario_runner.usecases.planning import PlanRules, plan_more, sweep
from scenario_runner.usecases.reconciling import Reconcile
from scenario_runner.usecases.recounting import Recounts
from scenario_runner.usecases.supply import offer_more
from scenario_runner.usecases.tracking import TrackRuns
from service_kit.loops import first_of, one_piece, until_stopped
from upcycle.errors import Unavailable

PLAN_S: Final = 1.0
SWEEP_S: Final = 1.0
HOUSEKEEPING_S: Final = 1.0
TRACK_S: Final = 1.0
GENERATE_S: Final = 0.5
SCAN_S: Final = 1.0
_RUNS_AT_ONCE: Final = 16


class PlannerLoop:
    """Plans whenever something changed, at the latest after a second."""

    def __init__(self, plan: SqlPlan, rules: PlanRules) -> None:
        self._plan = plan
        self._rules = rules
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Plan soon: something changed."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the database is unavailable, the loop waits for it."""
        await until_stopped(stop, self._plan_all, every_s=PLAN_S, wake=self._wake, waiting="planner_waits")

    async def _plan_all(self) -> None:
        failed: Unavailable | None = None
        for run in await self._plan.read(lambda unit: unit.active_runs()):
            try:
                with one_piece(f"planning of {run.run_id}", of=run.run_id):
                    await self._plan_run(run.run_id, run.spec.purpose)
            except Unavailable as error:  # the other runs go on
                failed = error
        if failed is not None:
            raise failed

    async def _plan_run(self, run_id: str, purpose: Purpose) -> None:
        if purpose is Purpose.TRAIN:
            await self._offer_to(run_id)
        # In small transactions, so that environments opened meanwhile do not wait for a whole plan.
        while True:
            with telemetry.PLAN_S.labels("groups").time():
                count = await self._plan.transact(lambda unit: plan_more(unit, run_id, self._rules))
            if not count:
                return
            telemetry.GROUPS_PLANNED.labels(purpose.value).inc(count)

    async def _offer_to(self, run_id: str) -> None:
        while True:
            with telemetry.PLAN_S.labels("offers").time():
                count = await self._plan.transact(lambda unit: offer_more(unit, run_id, self._rules))
            if not count:
                return
            telemetry.GROUPS_OFFERED.inc(count)


class SweepLoop:
    """Looks for what is overdue once a second, and asks other services about it. Planning waits for none of
    them, and no run for the questions of another one.
    """

    def __init__(
        self,
        plan: SqlPlan,
        gauge: BusGauge,
        peer_facts: PeerFacts,
        outcomes: BusOutcomes,
        rules: PlanRules,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._plan = plan
        self._now = now
        self._reconcile = Reconcile(plan, peer_facts, deadline_s=rules.settle_deadline_s)
        self._recounts = Recounts(plan)
        self._gauge = gauge
        self._peer_facts = peer_facts
        self._outcomes = outcomes
        self._backlog = GraderBacklog()
        self._rules = rules
        self._asking = asyncio.Semaphore(_RUNS_AT_ONCE)
        self._swept: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the database is unavailable, the loop waits for it."""
        await until_stopped(stop, self._sweep_all, every_s=SWEEP_S, waiting="sweep_waits")

    async def _sweep_all(self) -> None:
        runs = await self._plan.read(lambda unit: unit.active_runs())
        for ended in self._swept - {run.run_id for run in runs}:
            telemetry.EPISODES_IN_FLIGHT.remove(ended)
            self._reconcile.forget(ended)
            self._recounts.forget(ended)
            self._swept.discard(ended)
        if runs:
            await self._note_look()
        done = await asyncio.gather(*map(self._look_after, runs), return_exceptions=True)
        if runs:  # one that took long was no gap
            await self._note_look()
        for error in done:
            if error is not None:
                raise error

    async def _note_look(self) -> None:
        if await self._plan.read(lambda unit: unit.watched.is_due):
            await self._plan.transact(lambda unit: unit.watched.note_look())

    async def _look_after(self, run: RunRecord) -> None:
        async with self._asking:
            with one_piece(f"sweep of {run.run_id}", of=run.run_id):
                await self._sweep(run)
                telemetry.ANNOUNCED_AGAIN.inc(await self._reconcile(run, self._now()))

    async def _sweep(self, run: RunRecord) -> None:
        run_id = run.run_id
        none_queued_before = await self._none_queued_before(run)
        outcomes = await self._overdue(run)
        counted = await self._recounts(run)

        def work(unit: PlanUnit) -> int:
            sweep(
                unit,
                run_id,
                self._rules,
                none_queued_before=none_queued_before,
                outcomes=outcomes,
                counted=counted,
            )
            return unit.num_in_flight(run_id)

        with telemetry.PLAN_S.labels("sweep").time():
            in_flight = await self._plan.transact(work)
        telemetry.EPISODES_IN_FLIGHT.labels(run_id).set(in_flight)
        self._swept.add(run_id)

    async def _none_queued_before(self, run: RunRecord) -> datetime | None:
        """Asked only for a run that may lack a command."""
        if not await self._plan.read(lambda unit: has_unopened(unit, run)):
            return None
        return await self._gauge.none_queued_before(run.spec.purpose, run.spec.policy.model)

    async def _overdue(self, run: RunRecord) -> Sequence[Fact]:
        """Decide that episodes failed that were not graded in time; returns the stored decisions. Raises
        Unavailable."""
        late = await self._plan.read(lambda unit: overdue_ids(unit, run))
        if not late:
            return ()
        found = await self._peer_facts.at_grader(run.run_id, late)
        deadline = timedelta(seconds=run.spec.episode_deadline_s)
        at_grader = self._backlog.waiting(found, late, deadline, self._now())
        failures = await self._plan.read(lambda unit: overdue(unit, run, at_grader))
        return await self._outcomes.decide(run, failures)


class GeneratorLoop:
    """Has new tasks made for runs that ordered some. What fails is tried again at the next look."""

    def __init__(self, make: MakeTasks) -> None:
        self._make = make

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the database or an environment is unavailable, the loop waits for it."""
        await until_stopped(stop, self._make, every_s=GENERATE_S, waiting="generators_wait")


class LeakLoop:
    """Has registered tasksets searched for what they give away."""

    def __init__(self, scan: ScanForLeaks) -> None:
        self._scan = scan

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; a scan that is under way is cut off, and made again by the next planner. While the
        database is unavailable, the loop waits for it."""
        scans = until_stopped(stop, self._scan, every_s=SCAN_S, waiting="leak_scans_wait")
        async with first_of(stop.wait(), scans) as (_, scanning):
            if scanning.done():
                scanning.result()


class TrackLoop:
    """Follows training runs on held-out sets. What fails is tried again at the next look."""

    def __init__(self, track: TrackRuns) -> None:
        self._track = track

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the database or the registry is unavailable, the loop waits for it."""
        await until_stopped(stop, self._track, every_s=TRACK_S, waiting="tracking_waits")


class SessionLoop:
    """Looks for recorded sessions that were graded for runs which take them as they come."""

    def __init__(self, take: TakeSessions, *, every_s: float) -> None:
        self._take = take
        self._every_s = every_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the database or the trajectory store is unavailable, the loop waits for it."""
        await until_stopped(stop, self._take, every_s=self._every_s, waiting="sessions_wait")


class FleetLoop:
    """Writes down which environments were opened, and ends leases that lapsed."""

    def __init__(self, leases: Leases, episodes: PlannedEpisodes) -> None:
        self._leases = leases
        self._episodes = episodes
        self._unwritten: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; then every environment is ended."""
        await until_stopped(stop, self._keep_house, every_s=HOUSEKEEPING_S, waiting="opened_not_written")
        await self._leases.close_all()

    async def _keep_house(self) -> None:
        telemetry.LEASES_LAPSED.inc(await self._leases.expire())
        telemetry.ENVIRONMENTS_ALIVE.set(self._leases.num_alive)
        self._unwritten += self._leases.take_opened()
        if self._unwritten:
            await self._episodes.opened(self._unwritten)
            telemetry.ENVIRONMENTS_STARTED.inc(len(self._unwritten))
            self._unwritten = []
