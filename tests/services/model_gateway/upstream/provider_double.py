"""A provider on a port of its own, that speaks OpenAI's or Anthropic's dialect and breaks in every way that
the gateway must survive."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

KEY = "sk-a-secret-of-the-operator"
WORDS = ("it", "was", "the", "pool")
ANSWER = " ".join(WORDS)
USAGE = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
INPUT_PRICE, OUTPUT_PRICE = 2.0, 8.0
COST = 0.006
"""Of USAGE: 1,000 tokens at 2 a million and 500 at 8."""


@dataclass
class ProviderDouble:
    """fail: statuses of the next answers, in order. refuse: the status of all. body: in place of the answer.
    stall: hang before the head, or after so many events of a
    stream. cut_after: so many words."""

    fail: list[int] = field(default_factory=list)
    refuse: int = 0
    said: dict[str, Any] = field(default_factory=lambda: {"error": {"message": f"busy, {KEY} is known"}})
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    events: list[str] = field(default_factory=list)
    usage: dict[str, int] | None = field(default_factory=lambda: dict(USAGE))
    stall_head: bool = False
    stall_first: bool = False
    stall_after: int | None = None
    cut_after: int | None = None
    endless: bool = False
    word_delay_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen_headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    left: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        app = web.Application()
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
            app.router.add_post(path, self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.seen_headers.append(dict(request.headers))
        self.paths.append(request.path)
        status = self.fail.pop(0) if self.fail else self.refuse
        if status:
            return web.json_response(self.said, status=status, headers=self.headers)
        try:
            if self.stall_head or (self.stall_first and len(self.requests) == 1):
                await self.released.wait()
            if body.get("stream"):
                return await self._stream(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise
        if self.body:
            return web.Response(body=self.body, content_type="application/json")
        return web.json_response(self._whole(request.path, body))

    def _whole(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/v1/messages":
            usage = {"input_tokens": 1000, "output_tokens": 500}
            content = [{"type": "text", "text": ANSWER}]
            whole = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
            return {**whole, "content": content, "stop_reason": "end_turn", "usage": usage}
        message = {"role": "assistant", "content": ANSWER}
        answer = {"text": ANSWER} if path == "/v1/completions" else {"message": message}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None, **answer}
        head = {"id": "c-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        return {**head, "choices": [choice], **({"usage": self.usage} if self.usage else {})}

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = self.events or (
            self._messages(body) if request.path == "/v1/messages" else self._chunks(request.path, body)
        )
        for index, event in enumerate(events):
            if self.cut_after == index and request.transport is not None:
                request.transport.close()
                return response
            if self.stall_after == index:
                await self.released.wait()
            if self.word_delay_s:
                await asyncio.sleep(self.word_delay_s)
            await response.write(event.encode())
        while self.endless:
            await response.write(events[0].encode())
            await asyncio.sleep(0.01)
        await response.write_eof()
        return response

    def _chunks(self, path: str, body: dict[str, Any]) -> list[str]:
        head = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

        def chunk(text: str, reason: str | None) -> str:
            said = {"text": text} if path == "/v1/completions" else {"delta": {"content": text}}
            choice = {"index": 0, "finish_reason": reason, **said}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\r\n\r\n"

        words = [chunk(f"{word} ", None) for word in WORDS]
        if self.endless:
            return words
        last = [chunk("", "stop")]
        if self.usage and (body.get("stream_options") or {}).get("include_usage"):
            last.append(f"data: {json.dumps({**head, 'choices': [], 'usage': self.usage})}\r\n\r\n")
        return [": waiting\r\n\r\n" + words[0], *words[1:], *last, "data: [DONE]\r\n\r\n"]

    def _messages(self, body: dict[str, Any]) -> list[str]:
        start = {"id": "msg_1", "model": body["model"], "usage": {"input_tokens": 1000}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text"}})
        for word in WORDS:
            delta = {"type": "text_delta", "text": f"{word} "}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        events.append({"type": "content_block_stop", "index": 0})
        ending = {"stop_reason": "end_turn", "stop_sequence": None}
        events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 500}})
        events.append({"type": "message_stop"})
        return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events]


@asynccontextmanager
async def provider(**settings: Any) -> AsyncIterator[ProviderDouble]:
    """A running double."""
    double = ProviderDouble(**settings)
    await double.start()
    try:
        yield double
    finally:
        double.released.set()
        await double.stop()


def providers_file(folder: Path, url: str, *, fallbacks: dict[str, Any], **changes: Any) -> Path:
    """Two providers at one address: `acme` speaks OpenAI's dialect, `claudia` Anthropic's."""
    (folder / "provider.key").write_text(KEY)
    prices = {"input_price": INPUT_PRICE, "output_price": OUTPUT_PRICE}
    entries = {}
    for name, dialect in (("acme", "openai"), ("claudia", "anthropic")):
        models = {"large": {"upstream_name": f"{name}-large-2026", **prices, "max_tokens": 64}}
        entries[name] = {
            "url": url,
            "dialect": dialect,
            "key_file": "provider.key",
            "models": models,
            **changes,
        }
    path = folder / "providers.json"
    path.write_text(json.dumps({"providers": entries, "fallbacks": fallbacks}))
    return path
