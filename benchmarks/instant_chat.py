"""A chat model that answers at once: `python -m benchmarks.instant_chat`.

It speaks OpenAI's chat completions and answers `say 7` with `7`. Prints {"port": n} when it listens; ends
when its standard input does. Ours and every peer ask the same one.
"""

import asyncio
import json
import re
import sys
from typing import Any

import orjson
from aiohttp import web

ASKED = re.compile(r"say (\d+)")


async def complete(request: web.Request) -> web.Response:
    """The number that the last message asks for."""
    body = orjson.loads(await request.read())
    asked = ASKED.findall(json.dumps(body["messages"][-1]["content"]))
    message = {"role": "assistant", "content": asked[-1] if asked else ""}
    return web.Response(body=orjson.dumps(_reply(body, message)), content_type="application/json")


def _reply(body: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-instant",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }


async def main() -> None:
    """Serve until standard input ends."""
    app = web.Application(client_max_size=8 << 20)
    app.add_routes([web.post("/v1/chat/completions", complete)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
