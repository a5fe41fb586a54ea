"""Facts that the stream holds."""

from typing import TypeVar

from google.protobuf.message import Message

from event_bus import Delivery, EventBus

M = TypeVar("M", bound=Message)


async def newest(bus: EventBus, kind: type[M], *, model: str) -> Delivery[M] | None:
    """The newest fact of a type about a model, None when there is none."""
    found = await bus.stored((kind,), after_sequence=0, model=model)
    return found[-1] if found else None
