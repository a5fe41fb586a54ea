"""Shadow requests: recorded and never served, bounded, and gone as soon as a request needs their engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.services.model_gateway.conftest import Gateway
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.services.model_gateway.test_canary_routing import change, known
from tests.support.waiting import until

from blob_store import S3BlobStore
from identities import objects
from identities.entities import recorded_episode_id, recorded_run_id
from model_gateway import telemetry
from model_gateway.usecases import shadows
from trajectory_body import unpack
from upcycle.api.common.v1 import common_pb2


def outcomes() -> dict[str, float]:
    """So far, by name."""
    names = ("recorded", "queue_full", "gave_way", "not_served", "failed")
    return {name: telemetry.SHADOWS.labels("incident", name)._value.get() for name in names}


def since(before: dict[str, float]) -> dict[str, float]:
    """What was added."""
    return {name: value - before[name] for name, value in outcomes().items() if value != before[name]}


async def ask(gateway: Gateway, *, session: str | None = "s", **body: Any) -> tuple[str, str]:
    """The version that answered, and the id of the request."""
    headers = {"X-Session-ID": session} if session else {}
    asked: Any = {"model": "incident", "messages": [{"role": "user", "content": "why?"}], **body}
    raw: Any = await gateway.client().chat.completions.with_raw_response.create(
        **asked, extra_headers=headers
    )
    if body.get("stream"):
        assert [chunk async for chunk in raw.parse()]
    return raw.headers["x-upcycle-version"], raw.headers["x-request-id"]


@asynccontextmanager
async def shadowed(gateway: Gateway, **beside: Any) -> AsyncIterator[tuple[EngineDouble, EngineDouble]]:
    """An engine of head, v3, and one that holds v4, which is sent every request."""
    gateway.registry.head("incident", 3)
    async with (
        engine(version=3, reports_versions=False) as head,
        engine(held=frozenset({4}), reports_versions=False, **beside) as other,
    ):
        gateway.registry.lease(head, "a-head")
        gateway.registry.lease(other, "b-beside", channel=common_pb2.CHANNEL_LATEST)
        await change(gateway, 1, 0.0, shadow=1.0)
        await until(lambda: known(gateway, ["b-beside"]), "the release to be known")
        yield head, other


async def test_a_shadow_is_recorded_and_never_served(gateway: Gateway) -> None:
    before = outcomes()
    async with shadowed(gateway) as (head, beside):
        answers = [await ask(gateway, stream=stream) for stream in (False, True)]
        await ask(gateway, session=None)  # neither its key nor its client has it recorded
        assert [version for version, _ in answers] == ["3", "3"]
        await until(lambda: since(before) == {"recorded": 2}, "both shadows to be recorded")
        assert len(head.requests) == 3
        for sent in beside.requests:
            assert (sent["model"], sent["return_token_ids"], sent.get("stream")) == (
                "incident@v4",
                True,
                None,
            )
    store = S3BlobStore(gateway.settings.s3)
    for _, request_id in answers:
        episode = recorded_episode_id(f"shadow:{request_id}")
        key = objects.trajectory_body(recorded_run_id("bootstrapkey1"), episode)
        body = unpack(await until(lambda: store.read(key), "the shadow to be stored"))  # noqa: B023
        assert body.answer == "the pool is exhausted"
    await store.stop()


async def test_a_shadow_gives_way_to_a_request_on_its_engine(gateway: Gateway) -> None:
    before = outcomes()
    gateway.registry.head("incident", 3)
    async with engine(version=3, held=frozenset({4}), reports_versions=False) as only:
        gateway.registry.lease(only, "only")
        await change(gateway, 1, 0.0, shadow=1.0)
        await until(lambda: known(gateway, ["only"]), "the release to be known")
        only.token_delay_s = 0.3
        assert (await ask(gateway))[0] == "3"
        await until(lambda: len(only.requests) == 2, "the shadow to begin")
        assert (await ask(gateway, session=None))[0] == "3"
        assert since(before) == {"gave_way": 1}
        await until(lambda: only.aborted == 1, "the engine to be told")


async def test_large_shadows_fill_the_queue_before_many_do(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "MAX_WAITING_BYTES", 1000)
    before = outcomes()
    async with shadowed(gateway):
        await ask(gateway, messages=[{"role": "user", "content": "why? " * 200}])
        assert since(before) == {"queue_full": 1}
        await ask(gateway)
        await until(lambda: since(before) == {"queue_full": 1, "recorded": 1}, "a small one to be recorded")


async def test_shadows_that_are_too_many_are_counted_and_delay_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "MAX_WAITING", 1)
    monkeypatch.setattr(shadows, "_IDLE_S", 0.5)
    before = outcomes()
    async with shadowed(gateway, fail_status=500) as (_, beside):
        await ask(gateway)
        await until(lambda: since(before) == {"failed": 1}, "the engine to fail")
        beside.fail_status, beside.held = 0, frozenset()
        gateway.registry.lease(beside, "b-beside", channel=common_pb2.CHANNEL_LATEST)
        await change(gateway, 2, 0.0, shadow=1.0)
        await until(lambda: known(gateway, []), "the engine to be known to hold nothing")
        asked = await asyncio.gather(*(ask(gateway) for _ in range(4)))
        assert {version for version, _ in asked} == {"3"}
        await until(
            lambda: since(before) == {"failed": 1, "queue_full": 2, "not_served": 2}, "all to be counted"
        )
