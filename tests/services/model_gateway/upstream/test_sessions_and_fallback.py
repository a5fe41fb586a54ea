"""Sessions of upstream models: kept as text, never trained. And a registered model whose engines are away."""

import asyncio
from typing import Any

import openai
import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.engine_double import ANSWER_TEXT as ENGINES_ANSWER
from tests.services.model_gateway.engine_double import engine
from tests.services.model_gateway.test_canary_routing import change, known
from tests.services.model_gateway.test_recorded_sessions import fresh, other_key, rows
from tests.services.model_gateway.upstream.provider_double import ANSWER, COST, WORDS, ProviderDouble
from tests.support.waiting import until

from blob_store import S3BlobStore
from blob_store.ref import from_wire
from grpo_trainer.domain.errors import Untrainable
from grpo_trainer.domain.token_rows import episode_tokens
from identities.entities import recorded_episode_id
from service_kit.groups import S3Settings
from trajectory_body import unpack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2 as pb
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded

ASK: Any = [{"role": "user", "content": "why?"}]
STREAMED = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def more() -> dict[str, Any]:
    return {"session_idle_s": 1.0, "engine_wait_s": 2.0}


async def body_of(gateway: Gateway, s3: S3Settings, session_id: str, model: str) -> pb.TrajectoryBody:
    async def found() -> Any:
        facts = await gateway.bus.stored((TrajectoryRecorded,), after_sequence=0, model=model)
        wanted = recorded_episode_id(session_id)
        return next((one.message for one in facts if one.message.episode.episode_id == wanted), None)

    fact = await until(found, "the record")
    store = S3BlobStore(s3)
    try:
        return unpack(await store.get(from_wire(fact.body)))
    finally:
        await store.stop()


@pytest.mark.parametrize("model", ["acme/large", "claudia/large"])
async def test_a_session_of_a_provider_is_a_trajectory_of_text_that_never_trains(
    gateway: Gateway, acme: ProviderDouble, s3_settings: S3Settings, model: str
) -> None:
    session_id = fresh("upstream")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    await client.chat.completions.create(model=model, messages=ASK)
    go_on = [*ASK, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "sure?"}]
    async for _ in await client.chat.completions.create(model=model, messages=go_on, stream=True):
        pass
    assert "return_token_ids" not in acme.requests[0]
    assert "logprobs" not in acme.requests[0]
    body = await body_of(gateway, s3_settings, session_id, model)
    assert body.episode.model == model
    assert [turn.text.split() for turn in body.turns] == [list(WORDS)] * 2
    with pytest.raises(Untrainable, match="holds no tokens"):
        episode_tokens("t", body.turns, temperature=body.temperature, train_parse_errors=True)
    assert not any(turn.sampled_ids or turn.versions for turn in body.turns)


async def test_ids_that_a_provider_reports_are_not_kept(
    gateway: Gateway, acme: ProviderDouble, s3_settings: S3Settings
) -> None:
    acme.body = (
        b'{"prompt_token_ids": [1], "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [2], '
        b'"logprobs": {"content": [{"token": "x", "logprob": -1.0}]}, "message": {"content": "x"}}]}'
    )
    session_id = fresh("ids")
    client = gateway.client(default_headers={"X-Session-ID": session_id})
    await client.chat.completions.create(model="acme/large", messages=ASK)
    (turn,) = (await body_of(gateway, s3_settings, session_id, "acme/large")).turns
    assert (turn.text, list(turn.sampled_ids), list(turn.new_prompt_ids)) == ("x", [], [])


@STREAMED
async def test_the_fallback_answers_where_no_engine_does_and_is_named(
    gateway: Gateway, acme: ProviderDouble, stream: bool
) -> None:
    gateway.registry.head("incident", 0)
    raw = await gateway.client().chat.completions.with_raw_response.create(
        model="incident", messages=ASK, stream=stream
    )
    assert raw.headers["x-upcycle-model"] == "acme/large"
    assert raw.headers["x-upcycle-fallback-of"] == "incident"
    assert "x-upcycle-version" not in raw.headers
    if stream:
        parts: Any = raw.parse()
        assert len([part async for part in parts]) > 4
    (row,) = await gateway.usage(1)
    assert (row["model"], row["cost"]) == ("acme/large", pytest.approx(COST))


async def test_an_engine_answers_while_there_is_one(gateway: Gateway, acme: ProviderDouble) -> None:
    async with engine() as double:
        gateway.registry.head("incident", 0)
        gateway.registry.lease(double)
        reply = await gateway.client().chat.completions.create(model="incident", messages=ASK)
        assert reply.choices[0].message.content == ENGINES_ANSWER
        double.fail_status = 500
        reply = await gateway.client().chat.completions.create(model="incident", messages=ASK)
        assert reply.choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        ({"model": "incident@v0"}, {}),
        ({"model": "incident"}, {"X-Session-ID": "s"}),
        ({"model": "incident", "extra_body": {"top_k": 3}}, {}),
        ({"model": "other"}, {}),
    ],
)
async def test_nothing_stands_in_for_a_version_a_session_or_what_it_cannot_honour(
    gateway: Gateway, acme: ProviderDouble, asked: dict[str, Any], headers: dict[str, str]
) -> None:
    for model in ("incident", "other"):
        gateway.registry.head(model, 0)
    if headers:
        headers = {"X-Session-ID": fresh("none")}
    with pytest.raises(openai.APIStatusError) as error:
        await gateway.client(default_headers=headers).chat.completions.create(messages=ASK, **asked)
    assert error.value.status_code in (404, 503)
    assert acme.requests == []
    if "extra_body" in asked:
        assert "its fallback cannot answer: top_k cannot be honoured by 'acme/large'" in error.value.message


async def test_what_a_fallback_answered_has_no_shadow(gateway: Gateway, acme: ProviderDouble) -> None:
    key = await other_key(gateway, may_capture=True)
    gateway.registry.head("incident", 3)
    async with engine(held=frozenset({4}), reports_versions=False) as beside:
        gateway.registry.lease(beside, "b-beside", channel=common_pb2.CHANNEL_LATEST)
        await change(gateway, 1, 0.0, shadow=1.0)
        await until(lambda: known(gateway, ["b-beside"]), "the release to be known")
        raw = await gateway.client(key).chat.completions.with_raw_response.create(
            model="incident", messages=ASK
        )
        assert raw.headers["x-upcycle-fallback-of"] == "incident"
        await asyncio.sleep(0.3)
        assert beside.requests == []


@pytest.mark.parametrize("more", [{"capture_fraction": 1.0, "engine_wait_s": 2.0}])
async def test_captured_traffic_holds_no_answer_of_a_provider(
    gateway: Gateway, acme: ProviderDouble, more: dict[str, Any]
) -> None:
    key = await other_key(gateway, may_capture=True)
    gateway.registry.head("incident", 0)
    for model in ("incident", "acme/large"):
        await gateway.client(key).chat.completions.create(model=model, messages=ASK)
    await gateway.usage(2)
    assert await rows(gateway, "select * from recorded_session") == []
