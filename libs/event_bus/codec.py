"""Events on the wire: protobuf in canonical JSON, so that a person with the `nats` CLI can read them.

The subject says which type a message is; the schema header must agree. The sender may be a version ahead: a
field that this version does not know is left out, counted, and logged once per type. A value of an enum that
it does not know is an error, because a guess at it would be a guess at what happened. The rules for senders
are in docs/do/add-an-event.md.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from event_bus import canonical_json, metrics
from event_bus.errors import EventTooLarge, MalformedEvent, UnknownEvent
from event_bus.topology import MAX_EVENT_BYTES
from identities import subjects

_LOG = logging.getLogger(__name__)
CONTENT_TYPE: Final = "content-type"
SCHEMA: Final = "Upcycle-Schema"
EVENT_ID: Final = "Nats-Msg-Id"
EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
"""Store a decision only where the newest message on this filter has that sequence; 0: where there is none."""
JSON: Final = "application/json"
_MAX_ID_LENGTH: Final = 512
_HEADER_LINE: Final = len("NATS/1.0\r\n") + len("\r\n")
_STREAM_HEADER: Final = "Nats-Expected-Stream"
_logged: set[str] = set()
"""Types whose unknown fields this process has logged."""


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


def again_id(number: int, event_id: str) -> str:
    """Id under which dead letter `number` is published again: the stream still remembers its own."""
    return f"again/{number}/{event_id}"


def event_id_of(subject: str, headers: Mapping[str, str]) -> str:
    """The id that the publisher gave a message; empty when it gave none."""
    event_id = headers.get(EVENT_ID, "")
    return event_id.split("/", 2)[2] if subjects.is_again(subject) and event_id.count("/") > 1 else event_id


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
    parse = _parsed if SCHEMA in headers else _parsed_strictly
    try:
        return parse(message_type, payload)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise MalformedEvent(f"not a {expected}: {error}") from error


def _parsed_strictly(message_type: type[Message], payload: bytes) -> Message:
    """No publisher of ours leaves the type header out: an unknown field is a mistake there."""
    return canonical_json.loads(message_type, payload)


def _parsed(message_type: type[Message], payload: bytes) -> Message:
    """The message without the fields that this version does not know. Raises ParseError and ValueError."""
    try:
        return _parsed_strictly(message_type, payload)
    except json_format.ParseError:
        # Raises for what is no message at all.
        json_format.Parse(payload, message_type(), ignore_unknown_fields=True)
        unknown: set[str] = set()
        known = _known(json.loads(payload), cast(Descriptor, message_type.DESCRIPTOR), "", unknown)
        # An unknown value of an enum is still in `known`, and is refused here.
        message = json_format.ParseDict(known, message_type())
        _report(message_type.DESCRIPTOR.full_name, unknown)
        return message


def _known(value: Any, descriptor: Descriptor, path: str, unknown: set[str]) -> Any:
    """A JSON object without the fields that `descriptor` lacks, whose paths are added to `unknown`."""
    if not isinstance(value, dict) or descriptor.full_name.startswith("google.protobuf."):
        return value
    fields = {**descriptor.fields_by_name, **{field.json_name: field for field in descriptor.fields}}
    unknown.update(f"{path}{name}" for name in value if name not in fields)
    return {
        name: _known_field(one, fields[name], f"{path}{name}.", unknown)
        for name, one in value.items()
        if name in fields
    }


def _known_field(value: Any, field: FieldDescriptor, path: str, unknown: set[str]) -> Any:
    kind = field.message_type
    if kind is None:
        return value
    if kind.GetOptions().map_entry:
        of_values = kind.fields_by_name["value"]
        return {key: _known_field(one, of_values, path, unknown) for key, one in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [_known(one, kind, path, unknown) for one in value]
    return _known(value, kind, path, unknown)


def _report(full_name: str, unknown: set[str]) -> None:
    metrics.UNKNOWN_FIELDS.labels(full_name).inc()
    if full_name not in _logged:
        _logged.add(full_name)
        _LOG.warning("newer_event", extra={"type": full_name, "fields_left_out": sorted(unknown)[:20]})
