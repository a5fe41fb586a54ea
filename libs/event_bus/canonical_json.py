"""Canonical JSON read into protobuf messages, as json_format does it, in a quarter of its time.

The fields of a type are looked up once. Text is read here only where it is exactly canonical; everything else
(unknown names, other spellings, errors) is left to json_format, so what is accepted, and what an error says,
are its. Writing is json_format's, which is fast enough.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Convert = Callable[[Any], Any]
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WELL_KNOWN: Final = "google.protobuf."
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_OF_FRACTION: Final = (3, 6, 9)
_INTEGERS: Final = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
_LONG_INTEGERS: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_FLOAT_MAX: Final = 3.4028234663852886e38


class _NotCanonical(Exception):
    """This text, or this type of message, is json_format's."""


def loads(message_type: type[Message], payload: bytes) -> Message:
    """Equal to `json_format.Parse(payload, message_type())`. Raises what that raises."""
    try:
        value = json.loads(payload, object_pairs_hook=_without_duplicates)
        return message_type(**_read(message_type.DESCRIPTOR, value))
    except (_NotCanonical, ValueError, TypeError, RecursionError):
        return json_format.Parse(payload, message_type())


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotCanonical
    return found


def _refused(_: Any) -> Any:
    raise _NotCanonical


def _finite(number: float) -> float:
    """What JSON has no number for is a word of json_format."""
    if not math.isfinite(number):
        raise _NotCanonical
    return number


def _read(descriptor: Any, value: Any) -> dict[str, Any]:
    """What the constructor of a message takes."""
    if type(value) is not dict:
        raise _NotCanonical
    readers = _readers(descriptor)
    read: dict[str, Any] = {}
    chosen: set[str] = set()
    for name, one in value.items():
        if (reader := readers.get(name)) is None:
            raise _NotCanonical
        field, oneof, convert = reader
        if oneof is not None:
            if oneof in chosen:
                raise _NotCanonical
            chosen.add(oneof)
        read[field] = convert(one)
    return read


@cache
def _readers(descriptor: Any) -> Mapping[str, tuple[str, str | None, Convert]]:
    """By the name of a field in JSON: its own name, the oneof that it is of, and what makes its value."""
    return {
        field.json_name: (
            field.name,
            None if field.containing_oneof is None else field.containing_oneof.name,
            _reader(field),
        )
        for field in descriptor.fields
    }


def _reader(field: Any) -> Convert:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        if entry["key"].cpp_type != FieldDescriptor.CPPTYPE_STRING or entry["value"].message_type is not None:
            return _refused
        one = _one_reader(entry["value"])
        return lambda value: {key: one(held) for key, held in _checked(dict, value).items()}
    read = _one_reader(field)
    if not field.is_repeated:
        return read
    return lambda values: list(map(read, _checked(list, values)))


def _one_reader(field: Any) -> Convert:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message_reader(field.message_type)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return lambda name: _number_of(field, name)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda text: base64.b64decode(_checked(str, text), validate=True)
    if kind in _LONG_INTEGERS:
        return _long_integer
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return _bounded_float if kind == FieldDescriptor.CPPTYPE_FLOAT else _double
    wanted = {FieldDescriptor.CPPTYPE_STRING: str, FieldDescriptor.CPPTYPE_BOOL: bool}
    wanted |= dict.fromkeys(_INTEGERS, int)
    python_type = wanted[kind]
    return lambda value: _checked(python_type, value)


def _message_reader(descriptor: Any) -> Convert:
    if descriptor.full_name == _TIMESTAMP:
        return _timestamp
    if descriptor.full_name.startswith(_WELL_KNOWN):
        return _refused
    return lambda value: _read(descriptor, value)


def _checked(python_type: type, value: Any) -> Any:
    if type(value) is not python_type:
        raise _NotCanonical
    return value


def _number_of(field: Any, name: Any) -> int:
    known = field.enum_type.values_by_name.get(name) if type(name) is str else None
    if known is None:
        raise _NotCanonical
    return int(known.number)


def _long_integer(text: Any) -> int:
    if type(text) is not str or not text.isascii() or not text.removeprefix("-").isdigit():
        raise _NotCanonical
    return int(text)


def _double(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise _NotCanonical
    return _finite(float(value))


def _bounded_float(value: Any) -> float:
    number = _double(value)
    if abs(number) > _FLOAT_MAX:
        raise _NotCanonical
    return number


def _timestamp(text: Any) -> Timestamp:
    """`2026-11-20T10:00:00.123456Z`."""
    if type(text) is not str or len(text) < len("2026-11-20T10:00:00Z") or text[10] != "T" or text[-1] != "Z":
        raise _NotCanonical
    fraction = text[19:-1]
    nanos = 0
    if fraction:
        digits = fraction[1:]
        if fraction[0] != "." or len(digits) not in _DIGITS_OF_FRACTION or not digits.isdigit():
            raise _NotCanonical
        nanos = int(digits.ljust(9, "0"))
    past = datetime.fromisoformat(f"{text[:19]}+00:00") - _EPOCH
    return Timestamp(seconds=past.days * 86_400 + past.seconds, nanos=nanos)
