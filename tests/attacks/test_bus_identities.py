"""Each service's key in the hands of an attacker: what is not the service's own is refused by the server.

The attacker has a plain client, and knows all subjects, streams and durables.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import SecretStr
from tests.bus_identities import MODEL, KeyedServer, keyed_server, literal
from tests.local_servers import NatsServer
from tests.support import refused as attacks

from event_bus.codec import SCHEMA, encode
from event_bus.connection import plain_client
from event_bus.provision import provision
from event_bus.rights import (
    JETSTREAM_PREFIX,
    OPERATOR,
    SERVICE_PREFIX,
    SERVICES,
    Rights,
    durables_of,
    rights_of,
)
from event_bus.topology import DECISIONS, DLQ, EVENTS, STREAMS, UPCYCLE, ConsumerSpec
from identities import subjects
from local_stack.nats import NatsLogin
from service_kit.groups import BusSettings
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

GRADE = f"up.default.decision.outcome.{MODEL}.forged.graded"
GRADE_AS_A_FACT = f"up.default.evt.trajectory.graded.{MODEL}"
PROMOTION = f"up.default.evt.checkpoint.promoted.{MODEL}"
PRIZES = (GRADE, GRADE_AS_A_FACT, PROMOTION)
"""What an attacker wants stored."""
FORGED = encode(TrajectoryGraded(episode=EpisodeIdentity(episode_id="forged"), reward=1.0))
HEADERS = {SCHEMA: TrajectoryGraded.DESCRIPTOR.full_name, "content-type": "application/json"}
REPLAYS = "up.default.again.{stream}.{durable}." + GRADE_AS_A_FACT
ADMINISTRATION = (
    "STREAM.CREATE.MINE", "STREAM.UPDATE.{stream}", "STREAM.DELETE.{stream}", "STREAM.PURGE.{stream}",
    "STREAM.MSG.DELETE.{stream}", "STREAM.SNAPSHOT.{stream}", "STREAM.RESTORE.{stream}",
    "STREAM.LEADER.STEPDOWN.{stream}", "CONSUMER.CREATE.{stream}", "CONSUMER.CREATE.{stream}.mine",
    "CONSUMER.CREATE.{stream}.mine.up.>", "CONSUMER.DURABLE.CREATE.{stream}.mine",
    "CONSUMER.DELETE.{stream}.{durable}", "CONSUMER.PAUSE.{stream}.{durable}",
    "CONSUMER.LEADER.STEPDOWN.{stream}.{durable}",
    "STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.{stream}", "CONSUMER.LIST.{stream}", "INFO",
    "DIRECT.GET.{stream}",
)  # fmt: skip
ANSWER_S = 5.0
NO_JETSTREAM = (10039, 10010)
"""Not enabled for the account; no cluster."""


def specs_of(service: str) -> list[ConsumerSpec]:
    return [spec.of_model(MODEL) if spec.pools else spec for spec in durables_of(service)]


PREFIXES = (JETSTREAM_PREFIX, SERVICE_PREFIX)
DURABLES = [spec for service in SERVICES for spec in specs_of(service)]


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[KeyedServer]:
    async with keyed_server(tmp_path) as running:
        yield running


@pytest.fixture
async def eyes(keyed: KeyedServer) -> AsyncIterator[Client]:
    async with keyed.client(OPERATOR) as client:
        yield client


async def counts(eyes: Client) -> dict[str, int]:
    """Messages ever stored, by stream."""
    jetstream = eyes.jetstream()
    return {spec.name: (await jetstream.stream_info(spec.name)).state.last_seq for spec in STREAMS}


async def stored_prizes(eyes: Client, service: str) -> list[str]:
    """What a service must not have stored, and has."""
    found = []
    for subject in PRIZES:
        for stream in (DECISIONS, EVENTS):
            info = await eyes.jetstream().stream_info(stream, subjects_filter=subject)
            if info.state.subjects and not rights_of(service).may_publish(subject):
                found.append(subject)
    return found


async def is_refused(attacker: Client, subject: str, payload: bytes = b"{}") -> bool:
    """Nothing listens there; or the JetStream of the attacker's own account, of which there is none."""
    try:
        answer = await attacker.request(subject, payload, timeout=ANSWER_S)
    except NoRespondersError:
        return True
    error = json.loads(answer.data).get("error") or {}
    return bool(error.get("err_code") in NO_JETSTREAM)


@pytest.mark.parametrize("service", SERVICES)
async def test_no_service_publishes_what_is_anothers(keyed: KeyedServer, eyes: Client, service: str) -> None:
    rights = rights_of(service)
    everything = {literal(one) for name in SERVICES for one in rights_of(name).publishes} | {*PRIZES}
    everything |= {REPLAYS.format(stream=spec.stream, durable=spec.durable) for spec in DURABLES}
    everything.add("up.default.handled.1")
    before = await counts(eyes)

    async with keyed.client(service) as attacker:
        foreign = {one for one in everything if not rights.may_publish(one)}
        refused = {one for one in foreign if await is_refused(attacker, one, FORGED)}

    assert len(foreign) > len(everything) / 2
    assert refused == foreign
    assert await counts(eyes) == before
    attacks.note("facts, decisions and commands of others", len(foreign))


@pytest.mark.parametrize("service", SERVICES)
async def test_what_is_its_own_it_may_publish(keyed: KeyedServer, service: str) -> None:
    """The test above would pass, too, where nothing is allowed."""
    async with keyed.client(service) as client:
        acks = [
            await client.jetstream(timeout=ANSWER_S).publish(
                literal(one), b"{}", headers={"Nats-Msg-Id": one}
            )
            for one in rights_of(service).publishes
        ]
    assert len({(ack.stream, ack.seq) for ack in acks}) == len(acks) > 0


@pytest.mark.parametrize("service", SERVICES)
async def test_no_service_administers_a_stream_or_a_durable(
    keyed: KeyedServer, eyes: Client, service: str
) -> None:
    before = await counts(eyes)
    wanted = {
        f"{prefix}.{call.format(stream=spec.stream, durable=spec.durable)}"
        for prefix in PREFIXES
        for call in ADMINISTRATION
        for spec in DURABLES
    }
    async with keyed.client(service) as attacker:
        allowed = {one for one in wanted if not await is_refused(attacker, one)}

    assert allowed == set()
    assert await counts(eyes) == before
    attacks.note("orders to streams and durables", len(wanted))
    for spec in DURABLES:
        assert (await eyes.jetstream().consumer_info(spec.stream, spec.durable)).paused is not True


@pytest.mark.parametrize("service", SERVICES)
async def test_no_service_pulls_from_the_durable_of_another(
    keyed: KeyedServer, eyes: Client, service: str
) -> None:
    jetstream = eyes.jetstream()
    for number, event in enumerate(UPCYCLE.events):
        await jetstream.publish(
            UPCYCLE.fact_subject(event, MODEL), b"{}", headers={"Nats-Msg-Id": f"{number}"}
        )
    for pool in ("train", "eval"):
        await jetstream.publish(f"up.default.task.episode.{pool}.{MODEL}", b"{}")
    others = [spec for spec in DURABLES if spec not in specs_of(service)]

    async with keyed.client(service) as attacker:
        inbox = attacker.new_inbox()
        got: list[Msg] = []

        async def note(msg: Msg) -> None:
            got.append(msg)

        await attacker.subscribe(inbox, cb=note)
        for spec in others:
            for prefix in PREFIXES:
                pull = f"{prefix}.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
                await attacker.publish(pull, b'{"batch": 5, "no_wait": true}', reply=inbox)
            await attacker.publish(f"$JS.ACK.{spec.stream}.{spec.durable}.1.1.1.1.1", b"+TERM")
        await attacker.flush()
        await is_refused(attacker, "$JS.API.INFO")  # answered after what was sent before it

    answers = [msg for msg in got if "Status" not in (msg.headers or {}) and b"not enabled" not in msg.data]
    assert answers == []
    attacks.note("pulls from durables of others", len(others) * (len(PREFIXES) + 1))
    for spec in others:
        info = await jetstream.consumer_info(spec.stream, spec.durable)
        assert info.delivered is not None
        assert (info.num_pending or 0) > 0
        assert (info.delivered.consumer_seq, info.num_ack_pending) == (0, 0), spec.durable


@pytest.mark.parametrize("service", SERVICES)
async def test_no_answer_of_the_server_becomes_a_grade_or_a_promotion(
    keyed: KeyedServer, eyes: Client, service: str
) -> None:
    """The server publishes an answer where the question says: a stored message, what a durable delivers, an
    acknowledgement."""
    rights = rights_of(service)
    async with keyed.client(service) as attacker:
        for number, own in enumerate(rights.publishes):  # a forged grade is in every stream that it may write
            await attacker.publish(literal(own), FORGED, headers={**HEADERS, "Nats-Msg-Id": str(number)})
        await attacker.flush()
        prizes = [one for one in PRIZES if not rights.may_publish(one)]
        for prize in prizes:
            await ask_for_everything(attacker, rights, prize)
        await is_refused(attacker, "$JS.API.INFO")

    assert await stored_prizes(eyes, service) == []
    attacks.note("answers of NATS meant to be stored as a grade or promotion", len(prizes))


async def ask_for_everything(attacker: Client, rights: Rights, prize: str) -> None:
    notes = [literal(one) for one in rights.publishes if ".attempt." in one]
    questions = [(f"DIRECT.GET.ATTEMPTS.{note}", b"") for note in notes]
    for stream in STREAMS:
        for call in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET"):
            questions.append((f"{call}.{stream.name}", b'{"seq": 1}'))
    for spec in DURABLES:
        questions.append((f"CONSUMER.INFO.{spec.stream}.{spec.durable}", b""))
        pull = f"CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
        questions.append((pull, b'{"batch": 100, "no_wait": true}'))
    for own in rights.publishes:
        await attacker.publish(literal(own), FORGED, reply=prize, headers=HEADERS)
    for prefix in PREFIXES:
        for question, body in questions:
            await attacker.publish(f"{prefix}.{question}", body, reply=prize)
    await attacker.flush()


@pytest.mark.parametrize(
    "more",
    [
        {"deliver_subject": GRADE},
        {"stream": "TASKS"},
        {"stream": DECISIONS},
        {"stream": "EVENTS.x"},
        {"filters": []},
        {"name": "default_reward-grader"},
        {"forgotten_after_s": 10**6},
        {"after": -5},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_provisioning_opens_no_reader_but_of_facts_for_who_reads_facts(
    keyed: KeyedServer, eyes: Client, more: dict[str, object]
) -> None:
    asked = {"stream": EVENTS, "filters": ["up.*.evt.>"], "after": 0, "forgotten_after_s": 60.0}
    async with keyed.client("model_gateway") as attacker:
        subject = subjects.request("model_gateway", "reader")
        plain = json.loads(
            (await attacker.request(subject, json.dumps(asked).encode(), timeout=ANSWER_S)).data
        )
        answer = await attacker.request(subject, json.dumps({**asked, **more}).encode(), timeout=ANSWER_S)

    assert set(plain) == {"name", "num_pending"}
    assert set(json.loads(answer.data)) == {"refused"}
    assert len(await eyes.jetstream().consumers_info(EVENTS)) == len(UPCYCLE.consumers) + 1
    attacks.note("requests to provisioning")


@pytest.mark.parametrize(
    "decided", ["", "x", GRADE, "up.*.decision.outcome.*.*.graded", "$JS.API.INFO", 5, ">"]
)
async def test_provisioning_copies_nothing_that_was_not_decided(
    keyed: KeyedServer, eyes: Client, decided: object
) -> None:
    before = await counts(eyes)
    async with keyed.client("scenario_runner") as attacker:
        subject = subjects.request("scenario_runner", "copy")
        answer = await attacker.request(subject, json.dumps({"decided": decided}).encode(), timeout=ANSWER_S)
        others = [subjects.request(name, what) for name in SERVICES for what in ("copy", "reader")]
        foreign = [one for one in others if "scenario_runner" not in one]
        refused = [one for one in foreign if await is_refused(attacker, one)]

    assert "refused" in json.loads(answer.data) or json.loads(answer.data) == {"copied": False}
    assert refused == foreign
    assert await counts(eyes) == before
    attacks.note("requests to provisioning", 1 + len(foreign))


async def test_no_service_sees_requests_and_answers_of_another(keyed: KeyedServer) -> None:
    seen: list[str] = []

    async def note(msg: Msg) -> None:
        seen.append(msg.subject)

    async with keyed.client("policy_engine") as spy, keyed.client("scenario_runner") as planner:
        for pattern in (">", "_INBOX.>", "up.>", "$JS.>", "$SYS.>"):
            await spy.subscribe(pattern, cb=note)
        await spy.flush()
        jetstream = planner.jetstream(prefix=SERVICE_PREFIX, timeout=ANSWER_S)
        await jetstream.publish(f"up.default.task.episode.train.{MODEL}", b"secret")
        await jetstream.stream_info(DLQ)
        await spy.flush()  # what there is for the spy was sent before the server answers this

    assert seen == []
    attacks.note("listening to others on the bus", 5)


async def test_a_server_with_keys_refuses_a_client_without_one(keyed: KeyedServer, tmp_path: Path) -> None:
    async def quiet(_: Exception) -> None: ...

    logins: tuple[dict[str, str], ...] = (
        {},
        {"user": "upcycle", "password": ""},
        {"user": "upcycle", "password": "upcycle"},
    )
    for login in logins:
        with pytest.raises(NatsError):
            await asyncio.wait_for(
                nats.connect(keyed.server.url, allow_reconnect=False, error_cb=quiet, **login), ANSWER_S
            )
        attacks.note("logins at NATS")


async def test_in_one_account_the_same_answer_is_a_grade(tmp_path: Path) -> None:
    """The attack is real where services share an account: this one has no right to publish a grade."""
    async with NatsServer(tmp_path / "nats", login=NatsLogin("upcycle", "p")) as server:
        settings = BusSettings(url=server.url, user="upcycle", password=SecretStr("p"))
        await provision(settings)
        attacker = await plain_client(settings, "attacker")
        own = f"up.default.evt.gateway.sampled.{MODEL}"
        ack = await attacker.jetstream().publish(own, FORGED, headers=HEADERS)
        question = json.dumps({"seq": ack.seq}).encode()
        await attacker.publish(f"$JS.API.DIRECT.GET.{EVENTS}", question, reply=GRADE)
        await attacker.flush()
        await asyncio.sleep(0.5)
        stored = await attacker.jetstream().get_last_msg(DECISIONS, GRADE)
        await attacker.close()

    assert (stored.data, (stored.headers or {})[SCHEMA]) == (FORGED, HEADERS[SCHEMA])
