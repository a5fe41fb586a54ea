"""A client that leaves at a bad moment of a stream: the engine's request ends with it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import orjson
import pytest

from engine_client import EngineState
from model_gateway.domain.calls import ApiRoute, CallLimits, CompletionCall, ModelTarget, read_call
from model_gateway.domain.routing import EngineRoute, RoutingView
from model_gateway.usecases.pick import Picked
from model_gateway.usecases.relay import EngineRelay, OpenStream, RelayPolicy

ENGINE = EngineRoute("e", "http://127.0.0.1:1", "incident", True, 3, "d", frozenset(), EngineState.READY, "1")
EVENT = (
    b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "weight_versions": [{"version": "3"}]}]}\n\n'
)


class EngineStub:
    """Stands for the engine, the choice of it and what the registry says; holds up the digest if told to."""

    status = 200
    content_type = "text/event-stream"
    view = RoutingView()

    def __init__(self) -> None:
        self.busy: Counter[str] = Counter()
        self.is_closed = False
        self.digest_asked = asyncio.Event()
        self.digest_known = asyncio.Event()

    async def pick(self, target: ModelTarget, **_: Any) -> Picked:
        return Picked(ENGINE, target)

    async def post(self, *_: Any) -> "EngineStub":
        return self

    async def loaded_version(self, _: EngineRoute) -> int:
        return 3

    async def digest(self, *_: Any) -> str:
        self.digest_asked.set()
        await self.digest_known.wait()
        return "d"

    async def chunks(self) -> AsyncIterator[bytes]:
        yield EVENT
        await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True


def relay(engine: EngineStub) -> EngineRelay:
    stub = cast(Any, engine)
    return EngineRelay(stub, stub, stub, RelayPolicy())


def call() -> CompletionCall:
    body = {"model": "incident", "messages": [{"role": "user", "content": "?"}], "stream": True}
    return read_call(ApiRoute.CHAT, orjson.dumps(body), body, CallLimits(8, 100))


@pytest.mark.parametrize("num_read", [0, 1])
async def test_a_stream_that_is_closed_before_its_end_ends_the_engines_request(num_read: int) -> None:
    engine = EngineStub()
    engine.digest_known.set()
    stream = await relay(engine).open_stream(call(), {})
    assert isinstance(stream, OpenStream)
    for _ in range(num_read):
        assert await anext(stream.events) == EVENT
    await stream.close()
    assert engine.is_closed
    assert engine.busy["e"] == 0


async def test_a_client_that_leaves_while_the_weights_are_named_ends_the_engines_request() -> None:
    engine = EngineStub()
    opening = asyncio.create_task(relay(engine).open_stream(call(), {}))
    await engine.digest_asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert engine.is_closed
