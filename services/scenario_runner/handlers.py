"""What the planner hears on the bus, and the loops that make it act."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from event_bus import Delivery
from scenario_runner import metrics
from scenario_runner.events import fact_from
from scenario_runner.ports import EpisodeBook, Plan, PlanUnit, QueueGauge
from scenario_runner.usecases.feeding import draw_more
from scenario_runner.usecases.leases import Leases
from scenario_runner.usecases.planning import PlanRules, apply_facts, plan_more, sweep
from upcycle.errors import Unavailable
from upcycle.run_config import Purpose

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
NOTE_OPENED_S: Final = 0.25


class PlannerLoop:
    """Plans whenever something changed, sweeps once a second."""

    def __init__(self, plan: Plan, gauge: QueueGauge, rules: PlanRules) -> None:
        self._plan = plan
        self._gauge = gauge
        self._rules = rules
        self._wake = asyncio.Event()
        self._next_sweep = 0.0

    def wake(self) -> None:
        """There may be something to plan."""
        self._wake.set()

    async def on_events(self, deliveries: Sequence[Delivery[Message]]) -> None:
        """One batch, one transaction. Safe to redeliver: every fact is a no-op the second time."""
        heard = [fact_from(delivery.message) for delivery in deliveries]
        facts = [fact for fact in heard if fact is not None]
        with metrics.PLAN_S.labels("facts").time():
            await self._plan.transact(lambda unit: apply_facts(unit, facts))
        self.wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. An unavailable database is waited for."""
        stopping = asyncio.ensure_future(stop.wait())
        while not stop.is_set():
            self._wake.clear()
            try:
                await self._plan_all()
                await self._sweep_if_due()
            except Unavailable as error:
                log.error("planner_waits", extra={"error": str(error)})
            waking = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({waking, stopping}, timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)
            waking.cancel()
        stopping.cancel()

    async def _plan_all(self) -> None:
        runs = await self._plan.transact(lambda unit: unit.active_runs())
        for run in runs:
            await self._plan_run(run.run_id, run.spec.purpose)

    async def _plan_run(self, run_id: str, purpose: Purpose) -> None:
        if purpose is Purpose.TRAIN:
            await self._draw_for(run_id)
        # In small transactions, so that environments opened meanwhile do not wait for a whole plan.
        while True:
            with metrics.PLAN_S.labels("groups").time():
                count = await self._plan.transact(lambda unit: plan_more(unit, run_id, self._rules))
            if not count:
                return
            metrics.GROUPS_PLANNED.labels(purpose.value).inc(count)

    async def _draw_for(self, run_id: str) -> None:
        while True:
            with metrics.PLAN_S.labels("draws").time():
                count = await self._plan.transact(lambda unit: draw_more(unit, run_id, self._rules))
            if not count:
                return
            metrics.GROUPS_DRAWN.inc(count)

    async def _sweep_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_S
        for run in await self._plan.transact(lambda unit: unit.active_runs()):
            await self._sweep(run.run_id, queue_is_idle=await self._gauge.is_idle(run.spec.purpose))

    async def _sweep(self, run_id: str, *, queue_is_idle: bool) -> None:
        def work(unit: PlanUnit) -> int:
            sweep(unit, run_id, self._rules, queue_is_idle=queue_is_idle)
            return unit.counts(run_id).in_flight

        with metrics.PLAN_S.labels("sweep").time():
            in_flight = await self._plan.transact(work)
        metrics.EPISODES_IN_FLIGHT.labels(run_id).set(in_flight)


class FleetLoop:
    """Notes what was opened, ends leases that lapsed."""

    def __init__(self, leases: Leases, book: EpisodeBook) -> None:
        self._leases = leases
        self._book = book

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; then every environment is ended."""
        stopping = asyncio.ensure_future(stop.wait())
        unnoted: list[str] = []
        while not stop.is_set():
            unnoted += self._leases.take_opened()
            try:
                if unnoted:
                    await self._book.opened(unnoted)
                    metrics.ENVIRONMENTS_STARTED.inc(len(unnoted))
                    unnoted = []
            except Unavailable as error:
                log.error("opened_not_noted", extra={"error": str(error), "count": len(unnoted)})
            metrics.LEASES_LAPSED.inc(await self._leases.expire())
            metrics.ENVIRONMENTS_ALIVE.set(self._leases.num_alive)
            await asyncio.wait({stopping}, timeout=NOTE_OPENED_S)
        await self._leases.close_all()
