"""What recording asks of engines and of the database, and that what is recorded stays the same."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import openai
import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.engine_double import WORDS, EngineDouble, engine
from tests.services.model_gateway.test_recorded_sessions import ASK, MODEL, OWNER, fresh, recorded

from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.domain.sessions import (
    CallKept,
    RecordedCall,
    SampledChoice,
    Session,
    SessionBounds,
    SessionClosed,
    SessionKey,
    SessionState,
    StorableCall,
    UnrecordableCall,
)
from model_gateway.usecases.known_sessions import KnownSessions
from model_gateway.usecases.recording import CloseSessions, RecordingPolicy
from model_gateway.wire.sessions import message_to_wire, storable
from service_kit.clock import utc_now
from service_kit.groups import S3Settings
from sql_store import Database, migrate


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"session_idle_s": 1.0}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("kind", "has_columns", "is_asked"),
    [("embedded", True, True), ("embedded", False, True), ("vllm", False, False)],
    ids=["embedded", "embedded of a version before", "vllm"],
)
async def test_every_engine_s_tokens_are_recorded_alike(
    gateway: Gateway, s3_settings: S3Settings, kind: str, has_columns: bool, is_asked: bool, streamed: bool
) -> None:
    session_id = fresh("alike")
    async with engine(version=3, kind=kind, has_columns=has_columns) as double:
        gateway.registry.head(MODEL, 3)
        gateway.registry.lease(double)
        client = gateway.client(default_headers={"X-Session-ID": session_id})
        said: Any = await client.chat.completions.create(model=MODEL, messages=ASK, stream=streamed)
        if streamed:
            chunks = [chunk async for chunk in said]
            assert all(chunk.choices[0].logprobs is None for chunk in chunks if chunk.choices)
        else:
            assert said.choices[0].logprobs is None
        assert double.requests[-1].get("logprobs_as") == ("columns" if is_asked else None)
        (turn,) = (await recorded(gateway, s3_settings, session_id)).turns
    assert list(turn.sampled_ids) == [11, 12, 13, 14]
    assert list(turn.sampled_logprobs) == [-0.5] * 4
    assert tuple(turn.sampled_texts) == WORDS


async def test_a_client_that_asks_for_log_probabilities_gets_them_in_openai_s_form(
    gateway: Gateway, s3_settings: S3Settings
) -> None:
    session_id = fresh("asked")
    async with engine(version=3, kind="embedded") as double:
        gateway.registry.head(MODEL, 3)
        gateway.registry.lease(double)
        client = gateway.client(default_headers={"X-Session-ID": session_id})
        said = await client.chat.completions.create(model=MODEL, messages=ASK, logprobs=True)
        logprobs = said.choices[0].logprobs
        assert logprobs is not None
        assert [one.token for one in logprobs.content or ()] == list(WORDS)
        (turn,) = (await recorded(gateway, s3_settings, session_id)).turns
    assert tuple(turn.sampled_texts) == WORDS


async def test_a_client_cannot_ask_for_columns(gateway: Gateway, served: EngineDouble) -> None:
    with pytest.raises(openai.BadRequestError, match="logprobs_as"):
        await gateway.client().chat.completions.create(
            model=MODEL, messages=ASK, extra_body={"logprobs_as": "columns"}
        )
    assert not served.requests


class Counting(SqlSessions):
    """Counts its reads."""

    reads = 0

    async def find(self, session_id: str) -> Session | None:
        self.reads += 1
        return await super().find(session_id)


@pytest.fixture
async def sessions(sql_url: str) -> Any:
    database = Database(sql_url)
    await database.start()
    await migrate(database, "model_gateway")
    yield Counting(database, SessionBounds())
    await database.stop()


async def test_a_session_that_goes_on_is_read_once(sessions: Counting) -> None:
    known = KnownSessions(sessions)
    assert await known.find("a") is None
    known.put((await sessions.add([call_of("a")])).sessions)
    known.put((await sessions.add([call_of("a")])).sessions)
    found = await known.find("a")
    assert found is not None
    assert (found.num_calls, found.state, sessions.reads) == (2, SessionState.OPEN, 1)


async def test_what_closes_here_is_known_at_once(sessions: Counting) -> None:
    """Else a call after the reward would be answered by an engine, and only then refused."""
    known = KnownSessions(sessions)
    known.put((await sessions.add([call_of("a")])).sessions)
    closing = CloseSessions(sessions, known, Nowhere(), RecordingPolicy(), now=utc_now)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        await closing.close("a")
    found = await known.find("a")
    assert found is not None
    assert (found.state, sessions.reads) == (SessionState.CLOSING, 0)


class Slow(SqlSessions):
    """Answers with what it read once `answer` is set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_read, self.answer = asyncio.Event(), asyncio.Event()

    async def find(self, session_id: str) -> Session | None:
        found = await super().find(session_id)
        self.has_read.set()
        await self.answer.wait()
        return found


async def test_a_read_that_is_late_does_not_undo_what_this_process_changed_meanwhile(sql_url: str) -> None:
    """It would say for two seconds that a session, which a reward closes, is open."""
    database = Database(sql_url)
    await database.start()
    await migrate(database, "model_gateway")
    sessions = Slow(database, SessionBounds())
    known = KnownSessions(sessions)
    await sessions.add([call_of("a")])
    finding = asyncio.create_task(known.find("a"))
    await asyncio.wait_for(sessions.has_read.wait(), 10)
    known.put([await sessions.begin_closing("a")])
    sessions.answer.set()
    for found in (await finding, await known.find("a")):
        assert found is not None
        assert found.state is SessionState.CLOSING
    await database.stop()


async def stored_calls(sessions: SqlSessions, session_id: str) -> int:
    return len(await sessions.calls(session_id))


async def test_what_this_process_knows_is_stored_without_being_read(sessions: Counting) -> None:
    known: dict[str, Session | None] = {"a": None, "b": None}
    for _ in range(2):
        added = await sessions.add([call_of("b"), call_of("a"), call_of("b")], known)
        assert added.outcomes == [CallKept.RECORDED] * 3
        known = {session.session_id: session for session in added.sessions}
    counts = {one.session_id: one.num_calls for one in known.values() if one is not None}
    assert counts == {"a": 2, "b": 4}
    assert (await stored_calls(sessions, "a"), await stored_calls(sessions, "b")) == (2, 4)


async def test_a_call_that_another_replica_stored_meanwhile_is_counted(sessions: Counting) -> None:
    (before,) = (await sessions.add([call_of("a")])).sessions
    await sessions.add([call_of("a")])  # by the other one
    added = await sessions.add([call_of("a")], {"a": before})
    assert [one.num_calls for one in added.sessions] == [3]
    assert await stored_calls(sessions, "a") == 3


async def test_a_session_that_another_replica_opened_is_not_opened_twice(sessions: Counting) -> None:
    await sessions.add([call_of("a")])
    added = await sessions.add([call_of("new"), call_of("a")], {"a": None, "new": None})
    assert added.outcomes == [CallKept.RECORDED] * 2
    assert (await stored_calls(sessions, "a"), await stored_calls(sessions, "new")) == (2, 1)


async def test_a_session_that_another_replica_closed_takes_no_call(sessions: Counting) -> None:
    (before,) = (await sessions.add([call_of("a")])).sessions
    await sessions.begin_closing("a")
    refused, kept = (await sessions.add([call_of("a"), call_of("b")], {"a": before, "b": None})).outcomes
    assert isinstance(refused, SessionClosed)
    assert kept is CallKept.RECORDED, "what is refused of a batch takes nothing else with it"
    assert (await stored_calls(sessions, "a"), await stored_calls(sessions, "b")) == (1, 1)


async def test_sessions_are_found_while_calls_are_stored(sessions: Counting) -> None:
    """On SQLite by the transaction that stores the next calls."""
    await sessions.add([call_of("a")])
    adding = [asyncio.create_task(sessions.add([call_of(name)], {name: None})) for name in "bc"]
    found = await asyncio.wait_for(asyncio.gather(*map(sessions.find, ("a", "none", "a"))), 10)
    await asyncio.gather(*adding)
    assert [one and one.session_id for one in found] == ["a", None, "a"]


async def test_each_question_gets_one_answer(sessions: Counting) -> None:
    """Reads of their own, and transactions that store calls, beside one another."""
    await sessions.add([call_of("a")])
    asking: list[asyncio.Task[Session | None]] = []

    async def store() -> None:
        for _ in range(20):
            await sessions.add([call_of("a")])
            await asyncio.sleep(0.001)

    async def ask() -> None:
        for number in range(200):
            asking.append(asyncio.create_task(sessions.find(("a", "none")[number % 2])))
            await asyncio.sleep(0.0005 * (number % 3))

    await asyncio.gather(store(), ask())
    found = await asyncio.wait_for(asyncio.gather(*asking), 60)
    assert [one is not None for one in found] == [True, False] * 100


async def test_a_session_is_found_where_calls_cannot_be_stored(sessions: Counting) -> None:
    await sessions.add([call_of("a")])
    bad = replace(call_of("bad"), turns=["no bytes"])  # type: ignore[list-item]
    for _ in range(2):
        adding = asyncio.create_task(sessions.add([replace(bad, temperature="warm")]))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        found = await asyncio.wait_for(sessions.find("a"), 10)
        assert found is not None
        with contextlib.suppress(Exception):
            await adding


@pytest.mark.parametrize(
    "odd", ["look", True, ["look"], [{"function": "look"}], [{"function": ["look"]}], {"function": {}}, [1]]
)
def test_what_can_be_no_message_of_a_trajectory_is_not_stored(odd: Any) -> None:
    """What fails only once the session is closed would keep it from ever being closed."""
    message = {"role": "assistant", "content": None, "tool_calls": odd}
    with pytest.raises((AttributeError, TypeError)):
        message_to_wire(message)
    assert isinstance(storable(recorded_call("a", [*ASK, message])), UnrecordableCall)


@pytest.mark.parametrize(
    "even", [None, [], [{}], [{"function": None}], [{"id": 3, "function": {"name": 1, "arguments": {}}}]]
)
def test_what_can_be_read_later_is_stored(even: Any) -> None:
    message = {"role": 1, "content": [{"text": None}, 2], "tool_calls": even, "name": ["a"]}
    message_to_wire(message)
    assert isinstance(storable(recorded_call("a", [*ASK, message])), StorableCall)


class Nowhere:
    """An object store that is away."""

    async def keep(self, body: object) -> None:
        raise ConnectionError


def call_of(session_id: str) -> StorableCall:
    made = storable(recorded_call(session_id, ASK))
    assert isinstance(made, StorableCall)
    return made


def recorded_call(session_id: str, messages: Any) -> RecordedCall:
    return RecordedCall(
        key=SessionKey(session_id, OWNER),
        model=MODEL,
        body={"messages": messages},
        temperature=1.0,
        choices=[SampledChoice(0, prompt_ids=[1], token_ids=[2], logprobs=[-0.5], text="so")],
        digests={3: "d" * 64},
        started_at=utc_now(),
        ended_at=utc_now(),
    )
