"""Events on the wire: protobuf in canonical JSON, so that a person with the `nats` CLI can read them.

The subject says which type a message is; the schema header must agree. Unknown fields are an error, because
they mean that the sender knows something that this process would silently drop.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf import json_format
from google.protobuf.message import Message

from event_bus.errors import EventTooLarge, MalformedEvent, UnknownEvent
from event_bus.topology import MAX_EVENT_BYTES

CONTENT_TYPE: Final = "content-type"
SCHEMA: Final = "Upcycle-Schema"
EVENT_ID: Final = "Nats-Msg-Id"
JSON: Final = "application/json"
_MAX_ID_LENGTH: Final = 512
_HEADER_LINE: Final = len("NATS/1.0\r\n") + len("\r\n")
_STREAM_HEADER: Final = "Nats-Expected-Stream"


def encode(message: Message) -> bytes:
    """Canonical JSON of a message, one line of UTF-8."""
    return json_format.MessageToJson(message, indent=None).encode()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message as the bus carries it. payload: canonical JSON of a `message_type`."""

    message_type: type[Message]
    payload: bytes


def encoded(message: Message) -> Encoded:
    """What the bus will carry of a message."""
    return Encoded(type(message), encode(message))


def headers_for(message_type: type[Message], event_id: str) -> dict[str, str]:
    """Headers that every message carries. Raises UnknownEvent on an id that cannot be one."""
    if not event_id or not event_id.isascii() or not event_id.isprintable() or len(event_id) > _MAX_ID_LENGTH:
        raise UnknownEvent(
            f"event id {event_id[:60]!r} must be 1 to {_MAX_ID_LENGTH} printable ASCII characters: "
            "derive it from content"
        )
    return {CONTENT_TYPE: JSON, SCHEMA: message_type.DESCRIPTOR.full_name, EVENT_ID: event_id}


def check_size(
    subject: str, payload: bytes, headers: Mapping[str, str], *, limit: int = MAX_EVENT_BYTES
) -> None:
    """Raise EventTooLarge when payload and headers exceed `limit`.

    The client checks the payload alone; a message whose headers tip it over makes the server cut the
    connection.
    """
    size = len(payload) + headers_size(headers)
    if size > limit:
        raise EventTooLarge(
            f"message for {subject} is {size} bytes with its headers, limit {limit}: "
            "put the bulk in the object store and send its BlobRef"
        )


def headers_size(headers: Mapping[str, str]) -> int:
    """Bytes of a header block on the wire, the expected-stream header that each publish adds included."""
    lines: Iterable[tuple[str, str]] = [*headers.items(), (_STREAM_HEADER, " " * 16)]
    return _HEADER_LINE + sum(len(key.encode()) + len(value.encode()) + len(": \r\n") for key, value in lines)


def decode(message_type: type[Message], payload: bytes, headers: Mapping[str, str]) -> Message:
    """The message of a payload whose subject promises `message_type`. Raises MalformedEvent with the
    reason.
    """
    expected = message_type.DESCRIPTOR.full_name
    if (named := headers.get(SCHEMA, expected)) != expected:
        raise MalformedEvent(f"header {SCHEMA} says {named!r}, the subject says {expected!r}")
    if (content := headers.get(CONTENT_TYPE, JSON)) != JSON:
        raise MalformedEvent(f"content type {content!r}, expected {JSON!r}")
    try:
        return json_format.Parse(payload, message_type(), ignore_unknown_fields=False)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MalformedEvent(f"not a {expected}: {error}") from error
