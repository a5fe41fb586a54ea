"""A scripted HTTP server in the place of an engine, for replies that a healthy engine never gives."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

Answer = Callable[[Any], Any]


@asynccontextmanager
async def scripted(answers: dict[str, Answer]) -> AsyncIterator[tuple[str, list[tuple[str, Any]]]]:
    """Serve `answers` by path; yields the base URL and the list of requests as they come."""
    seen: list[tuple[str, Any]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw) if raw else None
        seen.append((request.path_qs, body))
        answer = answers.get(request.path)
        if answer is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        found = answer(body)
        return found if isinstance(found, web.StreamResponse) else web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


def refusal(status: int, message: str) -> web.Response:
    """vLLM's error envelope."""
    envelope = {"error": {"message": message, "type": "x", "param": None, "code": status}}
    return web.json_response(envelope, status=status)


def generated(ids: list[int], spans: list[tuple[str, int, int]], **changes: Any) -> dict[str, Any]:
    """A reply of /inference/v1/generate."""
    choice = {
        "index": 0,
        "finish_reason": "length",
        "token_ids": ids,
        "weight_versions": [{"version": v, "start": s, "end": e} for v, s, e in spans],
        "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in ids]},
        **changes,
    }
    return {"request_id": "r", "choices": [choice], "usage": {"prompt_tokens": 1}}
