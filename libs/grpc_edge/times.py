"""Times in requests that are none: protobuf carries any 64 bits, no clock has them."""

from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
"""Years 1 to 9999, which is what the contract of Timestamp allows."""
_DURATION: Final = 315_576_000_000
_NANOS: Final = 999_999_999

_has_times: dict[str, bool] = {}


def wrong_time(message: Message, path: str = "") -> str | None:
    """The first one, as `a.b is no time: ...`, or None."""
    where = path or message.DESCRIPTOR.name
    if isinstance(message, Timestamp):
        is_time = _SECONDS[0] <= message.seconds <= _SECONDS[1] and 0 <= message.nanos <= _NANOS
        return None if is_time else f"{where} is no time: {message.seconds} s, {message.nanos} ns"
    if isinstance(message, Duration):
        is_time = abs(message.seconds) <= _DURATION and abs(message.nanos) <= _NANOS
        return None if is_time else f"{where} is no duration: {message.seconds} s, {message.nanos} ns"
    if not has_times(message.DESCRIPTOR):
        return None
    for field, value in message.ListFields():
        for part in _messages(field, value):
            if found := wrong_time(part, f"{where}.{field.name}"):
                return found
    return None


def has_times(kind: Any) -> bool:
    """Whether a message with this descriptor may hold one, at any depth; most hold none."""
    if kind.full_name not in _has_times:
        _has_times[kind.full_name] = False  # of one that holds itself
        inner = (field.message_type for field in kind.fields if field.message_type is not None)
        times = (Timestamp.DESCRIPTOR.full_name, Duration.DESCRIPTOR.full_name)
        _has_times[kind.full_name] = any(one.full_name in times or has_times(one) for one in inner)
    return _has_times[kind.full_name]


def _messages(field: Any, value: Any) -> list[Message]:
    if field.message_type is None:
        return []
    if field.message_type.GetOptions().map_entry:
        return [part for part in value.values() if isinstance(part, Message)]
    return [value] if isinstance(value, Message) else list(value)
