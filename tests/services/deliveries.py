"""Messages as the bus delivers them."""

from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message

from event_bus import Delivery


def delivered(
    message: Message, at: datetime = datetime(2026, 1, 1, tzinfo=UTC), traceparent: str = ""
) -> Delivery[Any]:
    """A first delivery."""
    return Delivery(message, "", "", 0, 1, at, {"traceparent": traceparent})
