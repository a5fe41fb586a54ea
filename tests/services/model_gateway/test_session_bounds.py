"""A recorded session is bounded in calls and bytes, and a call that can be in no record fails alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest
from sqlalchemy import text
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.engine_double import EngineDouble
from tests.services.model_gateway.test_recorded_sessions import ASK, MODEL, fresh, recorded

from event_bus import PoisonMessage
from grpo_trainer.domain.token_rows import episode_tokens
from model_gateway import telemetry
from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.sessions import (
    CallKept,
    RecordedCall,
    SampledChoice,
    SessionBounds,
    SessionKey,
    StorableCall,
    StoredBatch,
    UnrecordableCall,
)
from model_gateway.usecases.known_sessions import KnownSessions
from model_gateway.usecases.recording import MAX_WAITING_BYTES, RecordCalls, RecordingPolicy
from model_gateway.wire import sessions as wire
from service_kit.groups import S3Settings
from sql_store import Database, migrate
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb

START = datetime(2026, 1, 1, tzinfo=UTC)


class Digests:
    """As the registry tells them."""

    async def digest(self, model: str, version: int) -> str:
        return f"{version:064x}"


def call_of(session_id: str, *, token: int = 11, content: str = "why?", **body: Any) -> RecordedCall:
    choice = SampledChoice(0, prompt_ids=[1, 2, 3], token_ids=[token], logprobs=[-0.5], text="so")
    return RecordedCall(
        key=SessionKey(session_id, "key"),
        model="m",
        body={"messages": [{"role": "user", "content": content}], **body},
        temperature=1.0,
        choices=[choice],
        digests={3: "d" * 64},
        started_at=START,
        ended_at=START + timedelta(seconds=1),
    )


def rows_of(call: RecordedCall) -> StorableCall:
    made = wire.storable(call)
    assert isinstance(made, StorableCall)
    return made


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    database = Database(sql_url)
    await database.start()
    await migrate(database, "model_gateway")
    yield database
    await database.stop()


def recording(sessions: SqlSessions) -> RecordCalls:
    return RecordCalls(sessions, KnownSessions(sessions), Digests(), RecordingPolicy(), now=lambda: START)  # type: ignore[arg-type]


async def added(calls: RecordCalls, *all_calls: RecordedCall) -> list[BaseException | None]:
    """What came of calls that arrive together."""
    adding = [asyncio.create_task(calls.add(one)) for one in all_calls]
    stop = asyncio.Event()
    running = asyncio.create_task(calls.run(stop))
    found = await asyncio.gather(*adding, return_exceptions=True)
    stop.set()
    await running
    return list(found)


@pytest.mark.parametrize(
    "bad",
    [
        call_of("bad", token=1 << 40),  # no id of a token
        call_of("bad", messages=[{"role": "assistant", "content": None, "tool_calls": ["look"]}]),
        call_of("bad", tools=[1 << 70]),
    ],
)
async def test_a_call_that_can_be_in_no_record_fails_alone(database: Database, bad: RecordedCall) -> None:
    before, why, after = await added(
        recording(SqlSessions(database, SessionBounds())), call_of("a"), bad, call_of("b")
    )
    assert (before, after) == (None, None)
    assert isinstance(why, UnrecordableCall)
    assert "session 'bad'" in why.message
    assert await sessions_in(database) == ["a", "b"]


class Refusing(SqlSessions):
    """Of a database that will never take a session's rows."""

    async def add(self, calls: Sequence[StorableCall], known: Any = None) -> StoredBatch:
        if any(call.key.session_id == "bad" for call in calls):
            raise PoisonMessage("no such row")
        return await super().add(calls, known)


async def test_what_the_database_refuses_of_a_batch_fails_alone(database: Database) -> None:
    calls = recording(Refusing(database, SessionBounds()))
    before, why, after = await added(calls, call_of("a"), call_of("bad"), call_of("b"))
    assert (before, after) == (None, None)
    assert isinstance(why, UnrecordableCall)
    assert await sessions_in(database) == ["a", "b"]


async def test_captured_calls_that_wait_are_bounded_in_bytes(database: Database) -> None:
    calls = recording(SqlSessions(database, SessionBounds()))
    before = telemetry.CAPTURE_DROPPED.labels("buffer_full")._value.get()
    half = MAX_WAITING_BYTES // 2
    for name, size in (("a", half), ("b", half), ("c", 1)):
        call = call_of(name)
        await calls.add(replace(call, key=replace(call.key, captured=True), request_bytes=size))
    await added(calls, call_of("named"))
    assert await sessions_in(database) == ["a", "b", "named"], (
        "who names a session waits for it, and loses none"
    )
    assert telemetry.CAPTURE_DROPPED.labels("buffer_full")._value.get() == before + 1


async def sessions_in(database: Database) -> list[str]:
    query = text("select session_id from recorded_session order by session_id")
    return await database.run(lambda connection: list(connection.execute(query).scalars()))


def test_bounds_take_what_fits_exactly_and_nothing_after_a_gap() -> None:
    bounds = SessionBounds(max_calls=3, max_bytes=100)
    assert bounds.have_room(num_calls=2, num_bytes=90, unrecorded_calls=0, size_bytes=10)
    assert not bounds.have_room(num_calls=3, num_bytes=0, unrecorded_calls=0, size_bytes=10)
    assert not bounds.have_room(num_calls=2, num_bytes=91, unrecorded_calls=0, size_bytes=10)
    assert not bounds.have_room(num_calls=1, num_bytes=0, unrecorded_calls=1, size_bytes=1), (
        "a smaller call after a gap"
    )


async def outcomes(sessions: SqlSessions, *calls: StorableCall) -> list[GatewayError | CallKept]:
    return [one for call in calls for one in (await sessions.add([call])).outcomes]


async def test_a_session_whose_first_call_is_too_large_is_closed_without_its_content(
    database: Database,
) -> None:
    sessions = SqlSessions(database, SessionBounds(max_bytes=500))
    large, small = rows_of(call_of("s", content="x" * 500)), rows_of(call_of("s"))
    assert await outcomes(sessions, large, small) == [CallKept.BEYOND_BOUNDS] * 2
    closing = await sessions.begin_closing("s")
    body = wire.body_to_wire(closing, await sessions.calls("s"))
    assert (closing.num_bytes, closing.unrecorded_calls, body.unrecorded_calls) == (0, 2, 2)
    assert (len(body.turns), len(body.prompt)) == (1, 0)
    assert body.stop_reason == pb.STOP_REASON_RECORDING_LIMIT
    assert body.episode.task_digest == large.task_digest, "it is still an attempt at this task"


@pytest.mark.parametrize("changes", [{"session_idle_s": 1.0, "session_max_calls": 2}])
async def test_calls_beyond_the_bound_are_answered_and_then_nothing_of_the_session_trains(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any]
) -> None:
    session_id = fresh("long")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    for _ in range(4):
        reply = await client.chat.completions.create(model=MODEL, messages=ASK)
        assert reply.choices[0].message.content
    body = await recorded(gateway, s3_settings, session_id)
    assert (len(body.turns), body.unrecorded_calls) == (2, 2)
    assert body.stop_reason == pb.STOP_REASON_RECORDING_LIMIT
    tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    assert tokens.num_trained == 0
    assert [list(turn.sampled_ids) for turn in body.turns] == [[11, 12, 13, 14]] * 2, "a person reads them"


@pytest.mark.parametrize("changes", [{"session_idle_s": 1.0}])
async def test_a_session_goes_on_after_a_call_that_can_be_in_no_record(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any]
) -> None:
    session_id = fresh("odd")
    ask = gateway.client(default_headers={"X-Session-ID": session_id}).chat.completions.create
    odd: Any = [*ASK, {"role": "assistant", "content": None, "tool_calls": ["look"]}]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        await ask(model=MODEL, messages=odd)
    assert error.value.code == "call_not_recordable"
    await ask(model=MODEL, messages=ASK)
    body = await recorded(gateway, s3_settings, session_id)
    assert (len(body.turns), body.unrecorded_calls) == (1, 0)
