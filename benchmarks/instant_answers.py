"""A chat engine that answers at once and costs next to nothing: `python -m benchmarks.instant_answers`.

As many tokens as `max_tokens` asks for, with their ids and log-probabilities where these are asked for, in
the forms that the embedded engine has. A stream has as many events, `seed` milliseconds apart.
Prints {"port": n} when it listens; ends when its standard input does.
"""

import asyncio
import json
import sys
from typing import Any, cast

import orjson
import uvloop

VERSION = "0"
_PROMPT = list(range(20))


class Instant(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._came += data
        while (request := self._taken()) is not None and self._transport is not None:
            asked = orjson.loads(request) if request else {}
            if asked.get("stream"):
                self._stream(asked)
                continue
            body = orjson.dumps(answer(asked)) if asked else b"{}"
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)

    def _stream(self, asked: dict[str, Any]) -> None:
        transport, loop = self._transport, asyncio.get_running_loop()
        assert transport is not None
        blocks = [_event(asked, number) for number in range(int(asked.get("max_tokens") or 1))]
        blocks += [_usage(asked, len(blocks)), b"data: [DONE]\n\n", b""]
        transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        pause_s = int(asked.get("seed") or 0) / 1e3

        def go_on(number: int) -> None:
            if transport.is_closing():
                return
            last = number + 1 if pause_s and number + 3 < len(blocks) else len(blocks)
            transport.write(b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in blocks[number:last]))
            if last < len(blocks):
                loop.call_later(pause_s, go_on, last)

        go_on(0)

    def _taken(self) -> bytes | None:
        head, blank, rest = self._came.partition(b"\r\n\r\n")
        if not blank:
            return None
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0]) if lengths else 0
        if len(rest) < length:
            return None
        self._came = rest[length:]
        return rest[:length]


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """As a chat engine would."""
    tokens = int(body.get("max_tokens") or 1)
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "word " * tokens},
        "finish_reason": "stop",
        "weight_versions": [{"version": VERSION, "start": 0, "end": tokens}],
    }
    reply = {
        "id": "chatcmpl-instant",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": len(_PROMPT), "completion_tokens": tokens, "total_tokens": 20 + tokens},
    }
    if body.get("logprobs"):
        choice["logprobs"] = _logprobs(tokens, in_columns=body.get("logprobs_as") == "columns")
    if body.get("return_token_ids"):
        reply["prompt_token_ids"], choice["token_ids"] = _PROMPT, list(range(100, 100 + tokens))
    return reply


def _event(asked: dict[str, Any], number: int) -> bytes:
    is_last = number + 1 == int(asked.get("max_tokens") or 1)
    choice: dict[str, Any] = {
        "index": 0,
        "delta": {"role": "assistant", "content": "word "},
        "finish_reason": "stop" if is_last else None,
        "weight_versions": [{"version": VERSION, "start": number, "end": number + 1}],
    }
    return _chunk(asked, choices=[choice])


def _usage(asked: dict[str, Any], tokens: int) -> bytes:
    usage = {"prompt_tokens": len(_PROMPT), "completion_tokens": tokens, "total_tokens": 20 + tokens}
    return _chunk(asked, choices=[], usage=usage)


def _chunk(asked: dict[str, Any], **fields: Any) -> bytes:
    said = {
        "id": "chatcmpl-instant",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": asked["model"],
    }
    return b"data: " + orjson.dumps({**said, **fields}) + b"\n\n"


def _logprobs(tokens: int, *, in_columns: bool) -> dict[str, Any]:
    if in_columns:
        return {"tokens": ["word "] * tokens, "token_logprobs": [-0.51234] * tokens}
    entry = {"token": "word ", "logprob": -0.51234, "bytes": None, "top_logprobs": []}
    return {"content": [entry] * tokens}


async def main() -> None:
    """Serve until standard input ends."""
    server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main())
