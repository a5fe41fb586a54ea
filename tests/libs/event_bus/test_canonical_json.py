"""The fast way from canonical JSON to a message reads, takes and refuses what protobuf's own does."""

import json
import random
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from event_bus import canonical_json
from event_bus.topology import UPCYCLE
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

TYPES = sorted({*UPCYCLE.events, *UPCYCLE.commands, TrajectoryBody}, key=lambda one: one.__name__)
TEXTS = ("", "plain", 'quotes " and \\', "Zürich ☃ 🦊", "line\nbreak\x00")
NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (0, 1, -1, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: (0.0, -0.0, 0.1, 1e-30, 3.4e38, 7.0, float("inf"), float("nan")),
    FieldDescriptor.CPPTYPE_DOUBLE: (0.0, -0.0, 0.1, 1e300, 5e-324, 7.0, float("-inf"), float("nan")),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
}
SECONDS = (0, 1, 1_763_900_000, -62_135_596_800, 253_402_300_799)
NANOS = (0, 1, 1_000, 120_000_000, 999_999_999)


def fill(message: Message, rng: random.Random, depth: int = 0) -> Message:
    """Any half of the fields, with values at their limits."""
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        if rng.random() < 0.5 or (field.message_type is not None and depth > 4):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fill_map(getattr(message, field.name), field, rng, depth)
        elif field.is_repeated:
            fill_list(getattr(message, field.name), field, rng, depth)
        elif field.message_type is None:
            setattr(message, field.name, scalar(field, rng))
        else:
            fill_one(getattr(message, field.name), rng, depth)
    return message


def fill_one(held: Any, rng: random.Random, depth: int) -> None:
    if held.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        held.seconds, held.nanos = rng.choice(SECONDS), rng.choice(NANOS)
    else:
        held.SetInParent()
        fill(held, rng, depth + 1)


def fill_list(held: Any, field: Any, rng: random.Random, depth: int) -> None:
    for _ in range(rng.randrange(3)):
        if field.message_type is not None:
            fill(held.add(), rng, depth + 1)
        else:
            held.append(scalar(field, rng))


def fill_map(held: Any, field: Any, rng: random.Random, depth: int) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(rng.randrange(3)):
        if value.message_type is None:
            held[scalar(key, rng)] = scalar(value, rng)
        else:
            fill(held[scalar(key, rng)], rng, depth + 1)


def scalar(field: Any, rng: random.Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([*(value.number for value in field.enum_type.values), 77])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(6)))
    return rng.choice(NUMBERS.get(field.cpp_type, TEXTS))


@pytest.mark.parametrize("message_type", TYPES, ids=lambda one: one.__name__)
def test_each_type_is_read_as_protobuf_does(message_type: type[Message]) -> None:
    rng = random.Random(7)
    for _ in range(60):
        message = fill(message_type(), rng)
        text = json_format.MessageToJson(message, indent=None)
        again = canonical_json.loads(message_type, text.encode())
        assert json.loads(json_format.MessageToJson(again)) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"episode": {"member": "3"}}',
        '{"episode": {"member": 3.0}}',
        '{"episode": {"member": true}}',
        '{"episode": {"episode_id": "e"}}',
        '{"episode": {"purpose": 1}}',
        '{"episode": {"purpose": 99}}',
        '{"episode": {}}',
        '{"episode": null}',
        '{"episode": []}',
        '{"kind": "a", "kind": "b"}',
        '{"kind": "\\ud800"}',
        '{"kind": 4}',
        '{"new": 4}',
        '{"failedAt": "2026-11-20T10:00:00+02:00"}',
        '{"failedAt": "2026-11-20T10:00:00.5Z"}',
        '{"failedAt": "2026-11-20T24:00:00Z"}',
        '{"failedAt": "2026-11-20 10:00:00Z"}',
        '{"failedAt": "0001-01-01T00:00:00Z"}',
        '{"failedAt": "2026-11-20T10:00:00.000001Z"}',
        '{"usage": {"environmentS": NaN}}',
        '{"usage": {"environmentS": "NaN"}}',
        '{"usage": {"environmentS": 1e999}}',
        '{"usage": {"environmentS": 4}}',
        '{"usage": {"environmentS": "4"}}',
        "[]",
        "null",
        "",
    ],
)
def test_what_is_not_canonical_is_taken_or_refused_as_protobuf_does(text: str) -> None:
    assert _outcome(canonical_json.loads, text) == _outcome(_parse, text)


def _parse(message_type: type[Message], payload: bytes) -> Message:
    return json_format.Parse(payload, message_type())


def _outcome(parse: Any, text: str) -> str:
    try:
        message = parse(EpisodeFailed, text.encode())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{message.SerializeToString(deterministic=True)!r}"


@pytest.mark.parametrize("message_type", [EpisodeRequested, TrajectoryRecorded, TrajectoryGraded])
def test_the_messages_of_an_episode_are_read_without_protobufs_parser(
    message_type: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    lines: list[str] = []
    while len(lines) < 20:
        text = json_format.MessageToJson(fill(message_type(), rng), indent=None)
        if "Infinity" not in text and "NaN" not in text and ": 77" not in text:
            lines.append(text)
    monkeypatch.delattr(json_format, "Parse")
    for text in lines:
        message = canonical_json.loads(message_type, text.encode())
        assert json.loads(json_format.MessageToJson(message)) == json.loads(text)
