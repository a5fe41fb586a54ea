"""What a service with a key asks others to do with theirs: provisioning, and the operator who replays."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from tests.bus_identities import MODEL, KeyedServer, keyed_server
from tests.local_servers import NatsServer

from event_bus.accounts import accounts_config
from event_bus.codec import EVENT_ID, SCHEMA, encode
from event_bus.dead_letter_box import DeadLetterBox
from event_bus.dead_letters import CONSUMER, ORIGINAL_ID, REASON, SEQUENCE, STREAM
from event_bus.errors import DeadLetterUndeliverable
from event_bus.keys import load_or_make
from event_bus.rights import IDENTITIES, OPERATOR
from event_bus.topology import DLQ, EVENTS, TRAJECTORY_STORE_LEDGER
from identities import subjects
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

GRADE = f"up.default.evt.trajectory.graded.{MODEL}"
FORGED = encode(TrajectoryGraded(episode=EpisodeIdentity(episode_id="forged"), reward=1.0))
ASKED = {"stream": EVENTS, "filters": ["up.*.evt.>"], "after": 0, "forgotten_after_s": 60.0}
ANSWER_S = 10.0


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedServer]:
    async with keyed_server(tmp_path) as running:
        yield running


async def answer(client: Client, service: str, what: str, question: bytes) -> dict[str, object]:
    said = await client.request(subjects.request(service, what), question, timeout=ANSWER_S)
    return dict(json.loads(said.data))


def question(**changes: object) -> bytes:
    return json.dumps({**ASKED, **changes}).encode()


ODD = {
    "nested": b"[" * 100_000,
    "text for a number": question(after="3"),
    "text for a time": question(forgotten_after_s="60"),
    "no end": b'{"stream": "EVENTS", "filters": ["x"], "after": Infinity, "forgotten_after_s": 60}',
    "never forgotten": b'{"stream": "EVENTS", "filters": ["x"], "after": 0, "forgotten_after_s": 1%s}'
    % (b"0" * 400),
    "beyond 64 bits": question(after=2**70),
    "text for filters": question(filters="up.>"),
    "no text": question(filters=[{}]),
    "many filters": question(filters=[f"up.{number}" for number in range(10_000)]),
    "half a character": b'{"stream": "\\ud800", "filters": ["x"], "after": 0, "forgotten_after_s": 60}',
    "odd stream": question(stream=[["EVENTS"]]),
    "long": question(description="x" * 100_000),
    "no bytes of text": b"\xff\xfe",
    "nothing": b"",
}


async def test_no_question_ends_provisioning(keyed: KeyedServer) -> None:
    """It answers every service: one that ends it stops the readers of all."""
    async with keyed.client("model_gateway") as attacker:
        for name, odd in ODD.items():
            said = await answer(attacker, "model_gateway", "reader", odd)
            assert set(said) == {"refused"}, name
            assert len(str(said["refused"])) < 1000, name
    async with keyed.client("scenario_runner") as attacker:
        for name, odd in ODD.items():
            said = await answer(attacker, "scenario_runner", "copy", odd)
            assert set(said) == {"refused"}, name
    async with keyed.client("grpo_trainer") as other:
        assert set(await answer(other, "grpo_trainer", "reader", question())) == {"name", "num_pending"}


async def dead_letter(client: Client, subject: str, body: bytes, sequence: int) -> int:
    """As a reader writes one of what it gave up; its number."""
    headers = {
        SCHEMA: TrajectoryGraded.DESCRIPTOR.full_name,
        EVENT_ID: f"dlq-{sequence}-{len(body)}",
        ORIGINAL_ID: "graded/forged",
        REASON: "not today",
        STREAM: EVENTS,
        CONSUMER: TRAJECTORY_STORE_LEDGER.durable,
        SEQUENCE: str(sequence),
    }
    ack = await client.jetstream(timeout=ANSWER_S).publish(
        subjects.dead_letter(subject), body, headers=headers
    )
    assert ack.stream == DLQ
    return ack.seq


async def test_no_dead_letter_that_a_service_invented_becomes_a_fact_when_it_is_replayed(
    keyed: KeyedServer,
) -> None:
    """A reader with a place of its own writes dead letters of every fact, and names who gave it up."""
    own = f"up.default.evt.engine.ready.{MODEL}"
    async with keyed.client("policy_engine") as attacker:
        jetstream = attacker.jetstream(timeout=ANSWER_S)
        ready = await jetstream.publish(own, FORGED, headers={EVENT_ID: "graded/forged"})
        numbers = [await dead_letter(attacker, GRADE, FORGED, at) for at in (0, ready.seq, ready.seq + 100)]

    async with DeadLetterBox.opened(keyed.settings(OPERATOR)) as box, keyed.client(OPERATOR) as eyes:
        for number in numbers:
            with pytest.raises(DeadLetterUndeliverable, match="upcycle bus dead"):
                await box.replay(number)
        info = await eyes.jetstream().stream_info(EVENTS, subjects_filter=subjects.all_again(EVENTS))
        assert not info.state.subjects


@pytest.mark.parametrize("changed", [{"body": b"{}"}, {"subject": f"{GRADE}2"}, {}], ids=str)
async def test_a_dead_letter_is_replayed_as_it_was_published(
    keyed: KeyedServer, changed: dict[str, object]
) -> None:
    async with keyed.client(OPERATOR) as operator:
        stored = await operator.jetstream().publish(GRADE, FORGED, headers={EVENT_ID: "graded/forged"})
    async with keyed.client("model_gateway") as gateway:
        sent = {"subject": GRADE, "body": FORGED, **changed}
        number = await dead_letter(gateway, str(sent["subject"]), bytes(sent["body"]), stored.seq)  # type: ignore[call-overload]
    async with DeadLetterBox.opened(keyed.settings(OPERATOR)) as box:
        if not changed:
            assert (await box.replay(number)).number == number
            return
        with pytest.raises(DeadLetterUndeliverable, match=f"is not message {stored.seq} of stream EVENTS"):
            await box.replay(number)


async def test_a_password_of_any_letters_is_one_that_the_server_takes(tmp_path: Path) -> None:
    """While one login is replaced by keys, both are let in."""
    login = ("upcycle", 'Grüße "und" \\ ☠')
    accounts = accounts_config(load_or_make(tmp_path / "keys", IDENTITIES), login=login)
    async with NatsServer(tmp_path / "nats", accounts=accounts) as server:
        client = await nats.connect(server.url, user=login[0], password=login[1], allow_reconnect=False)
        assert client.is_connected
        await client.close()
