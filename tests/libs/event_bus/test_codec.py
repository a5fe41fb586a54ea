"""Events on the wire: what is refused, and that sizes are counted as the server counts them."""

import json
import logging

import pytest
from prometheus_client import REGISTRY
from tests.libs.event_bus.support import failed

from event_bus import EventTooLarge, MalformedEvent, UnknownEvent, codec
from event_bus.codec import SCHEMA, check_size, decode, encode, headers_for
from event_bus.topology import MAX_EVENT_BYTES
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed
from upcycle.api.training.v1.events_pb2 import CheckpointSaved
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.api.trajectory.v1.trajectory_pb2 import Subscore


def test_an_event_is_canonical_json_that_a_person_can_read() -> None:
    message = failed("x")
    assert json.loads(encode(message)) == {
        "episode": {"episodeId": "e-x", "model": "incident"},
        "kind": "timeout",
        "detail": "x",
    }
    assert decode(EpisodeFailed, encode(message), headers_for(EpisodeFailed, "id")) == message


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"kind": "e", "mood": "good"}', "mood"),
        (b"{", "not a upcycle.api.taskset.v1.EpisodeFailed"),
        (b"", "not a"),
        (b"\xff\xfe", "not a"),
        (b'{"episode": {"member": "many"}}', "member"),
        (b'{"episode": {"purpose": "PURPOSE_TO_WIN"}}', "PURPOSE_TO_WIN"),
        (b"[" * 5000, "not a"),
        (b"0", "not a"),
    ],
)
def test_what_is_not_the_promised_message_is_malformed_and_says_why(payload: bytes, reason: str) -> None:
    with pytest.raises(MalformedEvent, match=reason):
        decode(EpisodeFailed, payload, {})


NEWER = headers_for(EpisodeFailed, "id")
NAME = "upcycle.api.taskset.v1.EpisodeFailed"


def unknown_fields() -> float:
    return REGISTRY.get_sample_value("upcycle_bus_unknown_fields_total", {"type": NAME}) or 0.0


def test_a_new_field_of_a_newer_sender_costs_neither_the_fact_nor_its_other_fields(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "_logged", set())
    before = unknown_fields()
    payload = b'{"mood": "good", "detail": "x", "episode": {"member": 2, "shape": {"deep": [1]}}}'
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            message = decode(EpisodeFailed, payload, NEWER)
    assert message == EpisodeFailed(detail="x", episode=EpisodeIdentity(member=2))
    assert unknown_fields() == before + 3
    (line,) = [one for one in caplog.records if one.message == "newer_event"]  # once for the type
    assert (line.__dict__["type"], line.__dict__["fields_left_out"]) == (NAME, ["episode.shape", "mood"])


def test_new_fields_are_left_out_of_lists_and_maps_too() -> None:
    graded = b'{"subscores": [{"name": "a", "children": [{"name": "b", "new": 1}], "new": 2}]}'
    assert decode(TrajectoryGraded, graded, headers_for(TrajectoryGraded, "id")) == TrajectoryGraded(
        subscores=[Subscore(name="a", children=[Subscore(name="b")])]
    )
    saved = b'{"model": "m", "sources": {"run-1": "3"}, "savedAt": "2026-01-01T00:00:00Z", "x": {"y": 1}}'
    message = decode(CheckpointSaved, saved, headers_for(CheckpointSaved, "id"))
    assert isinstance(message, CheckpointSaved)
    assert (message.model, dict(message.sources)) == ("m", {"run-1": 3})


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"mood": 1, "episode": {"purpose": "PURPOSE_TO_WIN"}}', "PURPOSE_TO_WIN"),
        (b'{"mood": 1, "episode": {"member": "many"}}', "member"),
        (b'{"mood": 1, "kind": "a", "kind": "b"}', "duplicate key"),
        (b'{"mood": 1, "episode": 3}', "episode"),
        (b'{"mood": ' + b"[" * 5000, "not a"),
    ],
)
def test_what_a_newer_sender_means_is_not_guessed(payload: bytes, reason: str) -> None:
    before = unknown_fields()
    with pytest.raises(MalformedEvent, match=reason):
        decode(EpisodeFailed, payload, NEWER)
    assert unknown_fields() == before


def test_the_schema_header_must_agree_with_the_subject() -> None:
    headers = headers_for(EpisodeCancelled, "id")
    with pytest.raises(MalformedEvent, match="EpisodeCancelled"):
        decode(EpisodeFailed, b"{}", headers)
    assert decode(EpisodeFailed, b"{}", {}) == EpisodeFailed()


def test_another_content_type_is_malformed() -> None:
    with pytest.raises(MalformedEvent, match="protobuf"):
        decode(EpisodeFailed, b"{}", {"content-type": "application/protobuf"})


@pytest.mark.parametrize("event_id", ["", "two\nlines", "caf\u00e9", "x" * 513])
def test_an_id_that_cannot_be_a_header_is_refused(event_id: str) -> None:
    with pytest.raises(UnknownEvent, match="event id"):
        headers_for(EpisodeFailed, event_id)


def test_headers_count_toward_the_limit() -> None:
    payload = b"x" * (MAX_EVENT_BYTES - 100)
    check_size("s", payload[:-200], {SCHEMA: "y"})
    with pytest.raises(EventTooLarge, match=r"262\d+ bytes with its headers, limit 262144"):
        check_size("s", payload, {SCHEMA: "y" * 100})
