"""Opt-in capture: what is kept, what is announced, and that nothing is kept otherwise."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import zstandard
from tests.facts import newest
from tests.services.model_gateway.conftest import Gateway, digest
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.support.waiting import until

from blob_store import BlobRef, S3BlobStore
from service_kit.groups import S3Settings
from upcycle.api.registry.v1.events_pb2 import GatewaySampled

ASK: Any = [{"role": "user", "content": "why?"}]
MODEL = "captured"


@pytest.fixture
async def served(gateway: Gateway) -> AsyncIterator[EngineDouble]:
    async with engine(model=MODEL, version=3) as double:
        gateway.registry.head(MODEL, 3)
        gateway.registry.lease(double)
        yield double


async def sampled(gateway: Gateway) -> GatewaySampled:
    found = await until(lambda: newest(gateway.bus, GatewaySampled, model=MODEL), "a capture")
    message: GatewaySampled = found.message
    return message


@pytest.mark.parametrize("changes", [{"capture_fraction": 1.0}])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_exchange_is_kept_word_for_word(
    gateway: Gateway, served: EngineDouble, s3_settings: S3Settings, changes: dict[str, Any], stream: bool
) -> None:
    raw: Any = await gateway.client().chat.completions.with_raw_response.create(
        model=MODEL, messages=ASK, stream=stream
    )
    if stream:
        assert [chunk async for chunk in raw.parse()]
    request_id = raw.headers["x-request-id"]
    event = await sampled(gateway)
    while event.request_id != request_id:
        await asyncio.sleep(0.05)
        event = await sampled(gateway)
    assert (event.version, event.digest) == (3, digest(3))
    store = S3BlobStore(s3_settings)
    data = await store.get(BlobRef(event.body.key, event.body.sha256, event.body.size_bytes))
    kept = orjson.loads(zstandard.decompress(data))
    assert kept["request"]["messages"] == ASK
    assert "exhausted" in kept["response"]
    await store.stop()


async def test_nothing_is_kept_unless_asked(gateway: Gateway, served: EngineDouble) -> None:
    before = await newest(gateway.bus, GatewaySampled, model=MODEL)
    await gateway.client().chat.completions.create(model=MODEL, messages=ASK)
    await gateway.usage(1)
    after = await newest(gateway.bus, GatewaySampled, model=MODEL)
    assert (before and before.event_id) == (after and after.event_id)
