"""The planner's subscription: a batch of facts from the stream, in stream order, becomes one transaction."""

from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from event_bus import Delivery, EventRouter
from event_bus.topology import SCENARIO_RUNNER_PLAN
from scenario_runner import telemetry
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.usecases.planning import apply_facts
from scenario_runner.wire.received import fact_from


def plan_router(plan: SqlPlan, *, wake: Callable[[], None]) -> EventRouter:
    """Applies facts to the plan. wake: called afterwards, because a slot may have become free."""
    router = EventRouter()

    @router.projection(SCENARIO_RUNNER_PLAN)
    async def apply(deliveries: Sequence[Delivery[Message]]) -> None:
        """One batch, one transaction. A fact that is delivered again changes nothing."""
        found = [fact_from(delivery.message) for delivery in deliveries]
        facts = [fact for fact in found if fact is not None]
        with telemetry.PLAN_S.labels("facts").time():
            await plan.transact(lambda unit: apply_facts(unit, facts))
        wake()

    return router
