"""Sessions that clients name are recorded as trajectories; nothing else is."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from sqlalchemy import text
from tests.services.model_gateway.conftest import KEY, Gateway, digest
from tests.services.model_gateway.engine_double import WORDS, EngineDouble
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store.ref import from_wire
from grpo_trainer.domain.token_rows import episode_tokens
from identities.entities import recorded_episode_id, recorded_run_id
from model_gateway.adapters.sql_keys import SqlKeyStore
from service_kit.clock import utc_now
from service_kit.groups import S3Settings
from sql_store import Database
from trajectory_body import unpack
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.events_pb2 import RecordedSessionOpened, TrajectoryRecorded

ASK: list[Any] = [{"role": "user", "content": "why?"}]
ANSWER = " ".join(WORDS)
MODEL = "incident"
OWNER = "bootstrapkey1"


def fresh(name: str) -> str:
    return f"{name}-{time.monotonic_ns()}"


@pytest.fixture
def changes() -> dict[str, Any]:
    return {"session_idle_s": 1.0}


async def facts_of(gateway: Gateway, kind: type[Any], session_id: str) -> list[Any]:
    wanted = recorded_episode_id(session_id)
    found = await gateway.bus.stored((kind,), after_sequence=0, model=MODEL)
    return [one.message for one in found if one.message.episode.episode_id == wanted]


async def recorded(gateway: Gateway, s3: S3Settings, session_id: str) -> pb.TrajectoryBody:
    """The stored trajectory of a session, once it is closed."""
    (fact,) = await until(
        lambda: facts_of(gateway, TrajectoryRecorded, session_id), "the record", timeout_s=30
    )
    store = S3BlobStore(s3)
    try:
        body = unpack(await store.get(from_wire(fact.body)))
    finally:
        await store.stop()
    assert (fact.num_turns, fact.sampled_by) == (len(body.turns), body.sampled_by)
    return body


async def rows(gateway: Gateway, query: str) -> list[dict[str, Any]]:
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    try:
        return await database.run(lambda one: [dict(row) for row in one.execute(text(query)).mappings()])
    finally:
        await database.stop()


async def other_key(gateway: Gateway, *, may_capture: bool = False) -> str:
    database = Database(gateway.settings.sql.url_for("model_gateway"))
    try:
        _, secret = await SqlKeyStore(database).create(
            "other", scopes=["inference"], models=[], now=utc_now(), may_capture=may_capture
        )
        return secret
    finally:
        await database.stop()


async def talk(client: openai.AsyncOpenAI, served: EngineDouble) -> None:
    """A call that asks for a tool, then a streamed one that goes on with its result."""
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    first = await client.chat.completions.create(model=MODEL, messages=ASK, tools=tools, temperature=0.7)
    said = first.model_dump()
    assert said["choices"][0]["logprobs"] is None, "the client did not ask for any"
    assert said.get("prompt_token_ids") is None
    assert said["choices"][0].get("token_ids") is None
    assert served.requests[-1]["return_token_ids"] is True
    served.prompt_ids = [1, 2, 3, 11, 12, 13, 14, 20, 21]
    go_on = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": said["choices"][0]["message"]["tool_calls"]},
        {"role": "tool", "tool_call_id": "call-1", "content": "pool is full"},
        {"role": "user", "content": "and now?"},
    ]
    stream: Any = await client.chat.completions.create(
        model=MODEL, messages=go_on, stream=True, temperature=0.7
    )
    choices = [chunk.choices[0] async for chunk in stream if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "".join(WORDS)
    assert all("token_ids" not in (choice.model_extra or {}) for choice in choices)
    assert all(choice.logprobs is None for choice in choices)


async def test_a_conversation_becomes_one_row_that_a_trainer_takes(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings
) -> None:
    session_id = fresh("talk")
    await talk(gateway.client(default_headers={"X-Session-ID": session_id}), served)
    (opened,) = await until(lambda: facts_of(gateway, RecordedSessionOpened, session_id), "the opening")
    assert opened.episode.run_id == recorded_run_id(OWNER)
    body = await recorded(gateway, s3_settings, session_id)
    assert body.episode == opened.episode
    asked, answered = body.turns
    assert [message.content for message in body.prompt] == ["why?"]
    assert list(asked.new_prompt_ids) == [1, 2, 3]
    assert [call.name for call in asked.tool_calls] == ["look"]
    assert [(result.call_id, result.content) for result in asked.tool_results] == [("call-1", "pool is full")]
    assert list(answered.new_prompt_ids) == [20, 21]
    assert [message.content for message in answered.new_messages] == ["and now?"]
    assert not answered.restarts_context
    assert body.answer == "".join(WORDS)
    for turn in body.turns:
        assert list(turn.sampled_ids) == [11, 12, 13, 14]
        assert list(turn.sampled_logprobs) == [-0.5] * 4
        (span,) = turn.versions
        assert (span.version, span.num_tokens) == (3, 4)
        assert span.weights_digest == digest(3)
    tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    (row,) = tokens.rows
    assert list(row.token_ids) == [1, 2, 3, 11, 12, 13, 14, 20, 21, 11, 12, 13, 14]
    assert body.temperature == pytest.approx(0.7)
    kept = await rows(gateway, f"select count(*) as n from recorded_call where session_id = '{session_id}'")  # noqa: S608
    assert kept == [{"n": 0}], "calls go once they are a trajectory"


async def test_a_reload_in_an_answer_is_in_its_versions(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings
) -> None:
    session_id = fresh("reload")
    served.reload_after = 2
    await gateway.client(default_headers={"Trace-Id": session_id}).chat.completions.create(
        model=MODEL, messages=ASK
    )
    body = await recorded(gateway, s3_settings, session_id)
    (turn,) = body.turns
    assert [(span.version, span.num_tokens) for span in turn.versions] == [(3, 2), (4, 2)]
    assert (body.sampled_by.oldest, body.sampled_by.newest) == (3, 4)


async def test_a_turn_of_another_temperature_is_kept_and_never_trains(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings
) -> None:
    session_id = fresh("cold")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    await client.chat.completions.create(model=MODEL, messages=ASK)
    await client.chat.completions.create(model=MODEL, messages=ASK, temperature=0.0)
    body = await recorded(gateway, s3_settings, session_id)
    tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    assert (body.temperature, len(body.turns), tokens.num_trained) == (1.0, 2, 4)


@pytest.mark.parametrize(
    "changed",
    [{"presence_penalty": 0.5}, {"logit_bias": {"5": 1}}, {"response_format": {"type": "json_object"}}],
)
async def test_a_turn_of_another_distribution_is_kept_and_never_trains(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changed: Any
) -> None:
    session_id = fresh("bent")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    neutral: Any = {"presence_penalty": 0, "response_format": {"type": "text"}, "logit_bias": {}}
    await client.chat.completions.create(model=MODEL, messages=ASK, **neutral)
    await client.chat.completions.create(model=MODEL, messages=ASK, **changed)
    body = await recorded(gateway, s3_settings, session_id)
    tokens = episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    assert (len(body.turns), tokens.num_trained) == (2, 4)


@pytest.mark.parametrize("way", ["X-Session-ID", "Trace-Id", "metadata", "path"])
async def test_each_way_to_name_a_session(gateway: Gateway, served: EngineDouble, way: str) -> None:
    session_id = fresh("named")
    client = gateway.client()
    more: Any = {}
    if way == "metadata":
        more = {"metadata": {"upcycle_session": session_id}}
    elif way == "path":
        client = gateway.client(base_url=f"{gateway.url}/s/{session_id}/v1")
        assert [card.id async for card in client.models.list()] == [MODEL]
    else:
        more = {"extra_headers": {way: session_id}}
    await client.chat.completions.create(model=MODEL, messages=ASK, **more)
    found = await rows(gateway, "select session_id, key_id, model from recorded_session")
    assert found == [{"session_id": session_id, "key_id": OWNER, "model": MODEL}]
    (usage,) = await gateway.usage(1)
    assert session_id not in usage["path"]


async def refused(asking: Callable[[], Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as error:
        await asking()
    return error.value


async def test_what_names_no_session_or_two_is_refused_and_nothing_is_kept(
    gateway: Gateway, served: EngineDouble
) -> None:
    ask = gateway.client().chat.completions.create
    two = await refused(
        lambda: ask(
            model=MODEL, messages=ASK, metadata={"upcycle_session": "b"}, extra_headers={"X-Session-ID": "a"}
        )
    )
    assert two.status_code == 400
    assert "'a' in X-Session-ID and 'b' in metadata.upcycle_session" in two.message
    for bad in ("no/slash", "x" * 65, "-a"):
        error = await refused(lambda: ask(model=MODEL, messages=ASK, extra_headers={"X-Session-ID": bad}))  # noqa: B023
        assert (error.status_code, "session id is" in error.message) == (400, True)
    echo = await refused(
        lambda: gateway.client().completions.create(
            model=MODEL, prompt="a", echo=True, extra_headers={"X-Session-ID": "e"}
        )
    )
    assert "echo cannot be recorded" in echo.message
    assert await rows(gateway, "select * from recorded_session") == []
    assert served.requests == []


@pytest.mark.parametrize("changes", [{"session_idle_s": 2.0}])
async def test_a_session_belongs_to_its_key_its_model_and_its_time(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    session_id = fresh("mine")
    named: Any = {"extra_headers": {"X-Session-ID": session_id}}
    mine = gateway.client()
    await mine.chat.completions.create(model=MODEL, messages=ASK, **named)
    theirs = gateway.client(await other_key(gateway))
    error = await refused(lambda: theirs.chat.completions.create(model=MODEL, messages=ASK, **named))
    assert (error.status_code, error.code) == (404, "session_not_found")
    gateway.registry.head("other", 3)
    error = await refused(lambda: mine.chat.completions.create(model="other", messages=ASK, **named))
    assert (error.status_code, error.code) == (409, "session_of_another_model")
    await until(lambda: facts_of(gateway, TrajectoryRecorded, session_id), "it to be closed", timeout_s=30)
    await asyncio.sleep(2.1)  # a gateway remembers for 2 s that a session was open
    error = await refused(lambda: mine.chat.completions.create(model=MODEL, messages=ASK, **named))
    assert (error.status_code, error.code) == (409, "session_closed")
    assert len(served.requests) == 1, "no engine was asked"


@pytest.mark.parametrize("changes", [{"session_idle_s": 600.0}])
async def test_a_call_that_is_answered_after_its_session_was_closed_is_withheld(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    session_id = fresh("late")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    await client.chat.completions.create(model=MODEL, messages=ASK)
    served.paused.clear()
    late = asyncio.create_task(refused(lambda: client.chat.completions.create(model=MODEL, messages=ASK)))
    await until(lambda: len(served.requests) == 2)
    await rows(gateway, "update recorded_session set state = 'recorded' returning session_id")
    served.paused.set()
    assert (await late).status_code == 409


async def test_a_client_that_asks_for_ids_and_logprobs_gets_them_too(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings
) -> None:
    session_id = fresh("asks")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    reply = await client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, extra_body={"return_token_ids": True}
    )
    said = reply.model_dump()
    assert said["choices"][0]["token_ids"] == [11, 12, 13, 14]
    assert len(said["choices"][0]["logprobs"]["content"]) == 4
    assert said["choices"][0]["prompt_token_ids"] == said["prompt_token_ids"] == [1, 2, 3]
    body = await recorded(gateway, s3_settings, session_id)
    assert list(body.turns[0].sampled_ids) == [11, 12, 13, 14]


async def test_a_call_without_a_session_is_neither_recorded_nor_changed(
    gateway: Gateway, served: EngineDouble
) -> None:
    await gateway.client().chat.completions.create(model=MODEL, messages=ASK)
    assert served.requests[-1].keys() == {"model", "messages"}
    assert await rows(gateway, "select * from recorded_call") == []


@pytest.mark.parametrize("changes", [{"capture_fraction": 1.0}])
@pytest.mark.parametrize("stream", [False, True])
async def test_traffic_is_captured_only_of_keys_whose_holder_agreed(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any], stream: bool
) -> None:
    await gateway.client().chat.completions.create(model=MODEL, messages=ASK)
    consenting = gateway.client(await other_key(gateway, may_capture=True))
    raw: Any = await consenting.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, stream=stream
    )
    if stream:
        assert [chunk async for chunk in raw.parse()]
    body = await recorded(gateway, s3_settings, raw.headers["x-request-id"])
    assert body.answer.replace(" ", "") == "".join(WORDS)
    assert len(await rows(gateway, "select * from recorded_session")) == 1


@pytest.mark.parametrize("changes", [{"capture_fraction": 0.0}])
async def test_nothing_is_captured_while_the_fraction_is_zero(
    gateway: Gateway, served: EngineDouble, changes: dict[str, Any]
) -> None:
    consenting = gateway.client(await other_key(gateway, may_capture=True))
    await consenting.chat.completions.create(model=MODEL, messages=ASK)
    assert await rows(gateway, "select * from recorded_session") == []


async def test_a_session_id_in_the_path_is_checked_too(gateway: Gateway, served: EngineDouble) -> None:
    url = f"{gateway.url}/s/{'x' * 65}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        reply = await http.post(url, json={"model": MODEL, "messages": ASK})
        assert reply.status == 400
        assert "the path names session" in (await reply.json())["error"]["message"]
