"""The loops beside the supervisor: the lease of the engine, and pins of runs as the planner has them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from identities.objects import PolicyFolder
from planned_runs import LOOK_S, EndsSeenTwice, PlannedRuns
from policy_engine import wire
from policy_engine.domain import LeaseFacts, PinRequests
from policy_engine.ports import Announcer
from service_kit.loops import until_stopped
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)


class LeaseLoop:
    """Renews the lease with the facts of the moment; there is none before an engine serves."""

    def __init__(
        self,
        announcer: Announcer,
        facts: Callable[[], LeaseFacts | None],
        held: Callable[[list[PolicyFolder]], object],
        *,
        renew_s: float,
        ttl_s: float,
    ) -> None:
        """held: called with what the registry has this engine hold, after each renewal."""
        self._announcer = announcer
        self._held = held
        self._facts = facts
        self._renew_s = renew_s
        self._ttl_s = ttl_s
        self._changed = asyncio.Event()
        self._lost: str | None = "not yet renewed"

    def changed(self) -> None:
        """Renew now."""
        self._changed.set()

    def ready(self) -> str | None:
        """None while the registry lists the engine."""
        return self._lost

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        await until_stopped(
            stop, self._renew, every_s=self._renew_s, wake=self._changed, waiting="lease_not_renewed"
        )
        with contextlib.suppress(Unavailable):
            await self._renew_for(1.0)  # let it lapse soon, so that the engine is routed to no more

    async def _renew(self) -> None:
        try:
            self._lost = await self._renew_for(self._ttl_s)
        except Unavailable as error:
            self._lost = f"the lease is not renewed: {error}"
            raise

    async def _renew_for(self, ttl_s: float) -> str | None:
        """None once the lease is renewed, else what is missing."""
        facts = self._facts()
        if facts is None:
            return "no engine serves yet"
        self._held(await self._announcer.renew_lease(facts, ttl_s))
        return None


class PlannedPins:
    """Keeps the pins as the planner has the runs: the stream may have lost a `run.submitted`, and no engine
    would load what the evaluation waits for, or a `run.finished`, and an engine of channel `candidate` would
    serve no other version. A run that is not over is pinned at once; a pin is dropped at the second look in a
    row at which its run is over."""

    def __init__(
        self, model: str, pins: PinRequests, planner: PlannedRuns, look_now: Callable[[], None]
    ) -> None:
        """look_now: wakes the supervisor."""
        self._model = model
        self._pins = pins
        self._planner = planner
        self._ends = EndsSeenTwice(planner)
        self._look_now = look_now

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. While the planner is unavailable, pins are kept."""
        await until_stopped(stop, self.look, every_s=LOOK_S, waiting="planner_not_asked_about_runs")

    async def look(self) -> None:
        """Ask about every run whose pin is kept, and which are open. Raises Unavailable once the answers are
        followed."""
        for run in await self._ends.look(self._pins.runs):
            log.warning("pin_of_ended_run", extra={"run_id": run.run_id})
            self._pins.unpin(run.run_id)
            self._look_now()
        await self._pin_open_runs()
        self._ends.check_answered()

    async def _pin_open_runs(self) -> None:
        for run in await self._planner.open_runs(self._model):
            versions = wire.pinned_by(run.spec)
            if versions and run.run_id not in self._pins.runs:
                log.info("pin_of_open_run", extra={"run_id": run.run_id, "versions": versions})
                self._pins.pin(run.run_id, *versions)
                self._look_now()
