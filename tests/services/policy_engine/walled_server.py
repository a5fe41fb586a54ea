"""A server as vLLM's is: uvicorn, an application that would do anything, and the wall around it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from policy_engine.adapters.in_vllm.upcycle_vllm_wall import VllmWall

KEY = "key-of-this-start"
WITH_KEY = {"Authorization": f"Bearer {KEY}"}


class Engine:
    """Answers each path with the bytes that it read; a completion waits until it may be answered, where a
    test wants that."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.may_go_on = asyncio.Event()
        self.seen: list[str] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["path"])
        if scope.get("query_string") == b"stream":
            await self._stream(receive, send)
            return
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        await self.may_answer.wait()
        await _sent(send, json.dumps({"bytes": size}).encode(), more=False)

    async def _stream(self, receive: Any, send: Any) -> None:
        await receive()
        await _sent(send, b"first\n", more=True)
        going_on = asyncio.create_task(self.may_go_on.wait())
        leaving = asyncio.create_task(receive())
        await asyncio.wait((going_on, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            assert leaving.result()["type"] == "http.disconnect"
            self.left.set()
            return
        leaving.cancel()
        await send({"type": "http.response.body", "body": b"last\n"})


async def _sent(send: Any, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body, "more_body": more})


@asynccontextmanager
async def walled(engine: Engine, http: Any = "httptools", **tls: Any) -> AsyncIterator[int]:
    """The port of a running server. http: uvicorn's parser."""
    config = uvicorn.Config(
        VllmWall(engine), host="127.0.0.1", port=0, http=http, lifespan="off", log_config=None, **tls
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        assert not running.done(), running
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit, server.force_exit = True, True
        await running
