"""The people of a history: each submits a run, and may end it early."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tests.simulation.before import AnyPolicy
from tests.simulation.moments import Moments
from tests.simulation.plans import PlannedRun
from tests.simulation.services import PLANNER_DB, Infrastructure

from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.runs import Refused
from scenario_runner.usecases.submitting import Runs, SubmitRun, TraceContext
from upcycle.retrying import retry

T = TypeVar("T")
CLIENT_RETRIES_S: Final = 450.0
"""How long a person repeats what was not answered: longer than every deadline of the platform."""
_ASK_AGAIN_S: Final = 1.5
"""After a refusal: a model is trained by one run at a time."""


async def repeated(ask: Callable[[], Awaitable[T]]) -> T:
    """As a client does, which asks again until it is answered."""
    return await retry(ask, budget_s=CLIENT_RETRIES_S)


class Client:
    """One person with one run. until: returns at a moment, or soon once all runs are over."""

    def __init__(
        self,
        planned: PlannedRun,
        given: Infrastructure,
        moments: Moments,
        until: Callable[[float], Awaitable[None]],
    ) -> None:
        plan = SqlPlan(given.databases[PLANNER_DB], now=given.now)
        self.planned = planned
        self.run_id = ""
        """Empty until the run was accepted."""
        self._given = given
        self._moments = moments
        self._until = until
        self._submit = SubmitRun(plan, AnyPolicy(), new_id=given.new_id, wake=self._wake_planner)
        self._runs = Runs(plan, wake=self._wake_planner)
        self._ending: asyncio.Task[object] | None = None

    async def run(self) -> None:
        """Submit, then end early where the plan says so."""
        await self._until(self.planned.at_s)
        await self.submit()
        if self.planned.ends_on is not None:
            self._moments.at(self.planned.ends_on, self._begin_to_end)
        elif self.planned.ends_at_s is not None:
            await self._until(self.planned.at_s + self.planned.ends_at_s)
            await self._end()

    async def submit(self) -> None:
        """Raises Refused where the model is trained by another run for longer than anybody is patient."""
        name = f"request-{self.planned.number}"
        until = self._given.loop.time() + CLIENT_RETRIES_S
        while not self.run_id:
            try:
                view = await repeated(lambda: self._submit(name, self.planned.spec, TraceContext("", {})))
            except Refused:
                if self._given.loop.time() > until:
                    raise
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                self.run_id = view.run.run_id

    async def resume(self) -> None:
        """The run paused itself, and what failed no longer does."""
        await repeated(lambda: self._runs.resume(self.run_id))

    def _begin_to_end(self) -> None:
        self._ending = self._given.loop.create_task(self._end())

    async def _end(self) -> None:
        end = self._runs.cancel if self.planned.is_cancelled else self._runs.stop
        await repeated(lambda: end(self.run_id, "by a person"))

    def _wake_planner(self) -> None:
        for wake in self._given.wake_planner:
            wake()
