"""Events on the wire: what is refused, and that sizes are counted as the server counts them."""

import json

import pytest
from tests.libs.event_bus.support import failed

from event_bus import EventTooLarge, MalformedEvent, UnknownEvent
from event_bus.codec import SCHEMA, check_size, decode, encode, headers_for
from event_bus.topology import MAX_EVENT_BYTES
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed


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
