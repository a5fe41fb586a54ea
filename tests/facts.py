"""Facts that the stream holds."""

import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message
from tests.support.waiting import until

from event_bus import Decision, Delivery, EventBus
from identities import events
from upcycle.api.training.v1.events_pb2 import StepCompleted

M = TypeVar("M", bound=Message)


async def newest(bus: EventBus, kind: type[M], *, model: str) -> Delivery[M] | None:
    """The newest fact of a type about a model, None when there is none."""
    found = await bus.stored((kind,), after_sequence=0, model=model)
    return found[-1] if found else None


async def with_decisions(bus: EventBus, kinds: Sequence[type[Message]]) -> list[Any]:
    """All facts of these types, once everything that was decided until now is copied to the stream."""
    marker = StepCompleted(run_id=uuid.uuid4().hex)
    await bus.decide([Decision(marker, "marker", events.step_completed(marker.run_id, 0))])

    async def is_copied() -> bool:
        found = await newest(bus, StepCompleted, model="marker")
        return found is not None and found.message == marker

    await until(is_copied)
    return [delivery.message for delivery in await bus.stored(kinds, after_sequence=0)]
