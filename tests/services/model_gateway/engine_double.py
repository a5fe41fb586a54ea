"""An engine that speaks the vLLM subset which the gateway uses, with words instead of weights.

It answers with one token per word, stamps each with its version, and can be told to break in every way that
the gateway must survive.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

WORDS = ("the", "pool", "is", "exhausted")
ANSWER_TEXT = " ".join(WORDS)


@dataclass
class EngineDouble:
    """One engine on a port of its own."""

    model: str = "incident"
    version: int = 0
    kind: str = ""
    has_columns: bool = True  # as the embedded engine does; one of a version before ignores `logprobs_as`
    reports_versions: bool = True  # as the embedded engine does; vLLM's chat route does not
    token_delay_s: float = 0.0
    fail_status: int = 0  # answer every completion with this
    fail_held: int = 0  # answer every completion of a held version with this
    is_alive: bool = False  # says so at /health
    cut_after: int | None = None  # close the connection after so many tokens of a stream
    reload_after: int | None = None  # the version grows by one after so many tokens
    held: frozenset[int] = frozenset()
    prompt_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    aborted: int = 0
    paused: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.paused.set()
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/weight_info", self._weight_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """Where it listens, or last listened."""
        if self._runner is not None:
            self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self._url

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": str(self.version)})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_alive else 503)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.model, "max_model_len": 2048}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if status := self.fail_status or (self.fail_held if "@" in body["model"] else 0):
            error = {"message": "broken", "type": "InternalServerError", "param": None, "code": 500}
            return web.json_response({"error": error}, status=status)
        pinned = [f"{self.model}@v{version}" for version in self.held]
        if body["model"] not in [self.model, *pinned]:
            error = {"message": f"The model `{body['model']}` does not exist.", "type": "NotFoundError"}
            return web.json_response({"error": {**error, "param": "model", "code": 404}}, status=404)
        if body.get("temperature") == -1:
            error = {"message": "temperature must be >= 0", "type": "BadRequestError"}
            return web.json_response({"error": {**error, "param": "temperature", "code": 400}}, status=400)
        try:
            return await self._answer(request, body)
        except asyncio.CancelledError:
            self.aborted += 1
            raise

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            return await self._stream(request, body)
        versions = [version async for _, version in self._tokens()]
        reply = {
            "id": "cmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [self._choice(request.path, body, versions) for _ in range(body.get("n", 1))],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }
        if body.get("return_token_ids"):
            reply["prompt_token_ids"] = self.prompt_ids
        return web.json_response(reply)

    def _choice(self, path: str, body: dict[str, Any], versions: list[int]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if path == "/v1/completions":
            choice["text"] = " ".join(WORDS)
            choice["logprobs"] = None
        else:
            choice["message"] = {"role": "assistant", "content": " ".join(WORDS)}
        if body.get("tools"):
            call = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            choice["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice["finish_reason"] = "tool_calls"
        if body.get("logprobs"):
            choice["logprobs"] = self._logprobs(body, WORDS)
        if body.get("return_token_ids"):
            choice["token_ids"] = [11, 12, 13, 14]
        if self.reports_versions:
            choice["weight_versions"] = spans(versions)
        return choice

    def _logprobs(self, body: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
        if self.has_columns and body.get("logprobs_as") == "columns":
            return {"tokens": list(words), "token_logprobs": [-0.5] * len(words)}
        entry: dict[str, Any] = {"logprob": -0.5, "bytes": None, "top_logprobs": []}
        return {"content": [{"token": word, **entry} for word in words], "refusal": None}

    async def _tokens(self) -> AsyncIterator[tuple[int, int]]:
        for index in range(len(WORDS)):
            await self.paused.wait()
            if self.token_delay_s:
                await asyncio.sleep(self.token_delay_s)
            if self.reload_after == index:
                self.version += 1
            yield index, self.version

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        versions = []
        async for index, version in self._tokens():
            if self.cut_after == index:
                assert request.transport is not None
                request.transport.abort()
                return response
            versions.append(version)
            chunk = {**head, "choices": [self._part(request.path, body, index, versions)]}
            if index == 0 and body.get("return_token_ids"):
                chunk["prompt_token_ids"] = self.prompt_ids
            await send(response, chunk)
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            await send(response, {**head, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _part(self, path: str, body: dict[str, Any], index: int, versions: list[int]) -> dict[str, Any]:
        part: dict[str, Any] = {"index": 0, "delta": {"content": WORDS[index]}, "finish_reason": None}
        if path == "/v1/completions":
            part = {"index": 0, "text": WORDS[index], "finish_reason": None}
        elif body.get("logprobs"):
            part["logprobs"] = self._logprobs(body, WORDS[index : index + 1])
        if body.get("return_token_ids"):
            part["token_ids"] = [11 + index]
        if index == len(WORDS) - 1:
            part["finish_reason"] = "stop"
            if self.reports_versions:
                part["weight_versions"] = spans(versions)
        return part


async def send(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    """In two writes, so that an event is cut in the middle."""
    data = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
    await response.write(data[:20])
    await response.write(data[20:])


def spans(versions: list[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index, version in enumerate(versions):
        if found and found[-1]["version"] == str(version):
            found[-1]["end"] = index + 1
        else:
            found.append({"version": str(version), "start": index, "end": index + 1})
    return found


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[EngineDouble]:
    """A started engine."""
    double = EngineDouble(**settings)
    await double.start()
    try:
        yield double
    finally:
        await double.stop()
