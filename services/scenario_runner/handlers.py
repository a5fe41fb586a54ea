"""The planner's subscription: a batch of facts from the stream, in stream order, becomes one transaction."""

from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from event_bus import Delivery
from scenario_runner import telemetry
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.usecases.planning import apply_facts
from scenario_runner.wire.received import fact_from


class PlanProjection:
    """Applies facts to the plan. wake: called afterwards, because a slot may have become free."""

    def __init__(self, plan: SqlPlan, *, wake: Callable[[], None]) -> None:
        self._plan = plan
        self._wake = wake

    async def on_events(self, deliveries: Sequence[Delivery[Message]]) -> None:
        """One batch, one transaction. A fact that is delivered again changes nothing."""
        found = [fact_from(delivery.message) for delivery in deliveries]
        facts = [fact for fact in found if fact is not None]
        with telemetry.PLAN_S.labels("facts").time():
            await self._plan.transact(lambda unit: apply_facts(unit, facts))
        self._wake()
