"""The planner's subscription: a batch of facts from the stream, in stream order, becomes one transaction."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from event_bus import Delivery, EventHandlers, EventRouter, PoisonMessage
from event_bus.topology import SCENARIO_RUNNER_PLAN
from scenario_runner import telemetry
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.facts import Fact
from scenario_runner.usecases.completed_steps import FalseStep
from scenario_runner.usecases.planning import apply_facts
from scenario_runner.wire import received
from sql_store import SoleHolder
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, RunStopping
from upcycle.api.training.v1.events_pb2 import GroupSettled, PolicyPublished, SessionFailed, StepCompleted
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

FACTS: Final = EventHandlers[Fact | None]()
"""What each event says to the plan; None for one that says nothing."""
FACTS(TrajectoryGraded)(received.graded)
FACTS(EpisodeFailed)(received.failed)
FACTS(RunStopping)(received.stopping)
FACTS(GroupSettled)(received.group_settled)
FACTS(StepCompleted)(received.advanced)
FACTS(PolicyPublished)(received.advanced)
FACTS(SessionFailed)(received.session_failed)


READING: Final = "reading of the plan's facts"


def plan_router(plan: SqlPlan, reading: SoleHolder, *, wake: Callable[[], None]) -> EventRouter:
    """Applies facts to the plan. reading: which planner of several does; of two that read at once, one would
    apply `run.stopping` while the other has outcomes that stand before it. wake: called afterwards, because
    another group may open now."""
    router = EventRouter()

    @router.projection(SCENARIO_RUNNER_PLAN, FACTS, is_ours=reading.is_ours)
    async def apply(batch: Sequence[tuple[Delivery[Any], Fact | None]]) -> None:
        """One batch, one transaction. A fact that is delivered again changes nothing; a false one is a dead
        letter."""
        facts = [fact for _, fact in batch if fact is not None]
        with telemetry.PLAN_S.labels("facts").time():
            try:
                await plan.transact(lambda unit: apply_facts(unit, facts), check=reading.check)
            except FalseStep as error:
                raise PoisonMessage(str(error)) from error
        wake()

    return router
