"""A policy engine that answers at once: `python -m benchmarks.instant_engine POLICY_DIR`.

It speaks what a sampler needs of vLLM's wire, reads the number out of the prompt's own tokens and answers it
with valid ones. Prints {"port": n} when it listens; ends when its standard input does.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from chat_format import ChatFormat

ASKED = re.compile(r"say (\d+)")
LOGPROB = -0.5
VERSION = "0"


class Instant:
    """The routes."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._stop = min(chat.stop_token_ids)

    def app(self) -> web.Application:
        """As aiohttp wants it."""
        app = web.Application(client_max_size=8 << 20)
        app.add_routes(
            [
                web.post("/inference/v1/generate", self.generate),
                web.get("/weight_info", self.weight_info),
                web.get("/health", self.health),
            ]
        )
        return app

    async def generate(self, request: web.Request) -> web.Response:
        """The number that the prompt asks for, then the stop token."""
        body = orjson.loads(await request.read())
        return web.Response(body=orjson.dumps(self._reply(body)), content_type="application/json")

    def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = [*self._chat.encode(self.answer(self._chat.decode(body["token_ids"]))), self._stop]
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": {"content": [{"token": f"token_id:{token}", "logprob": LOGPROB} for token in ids]},
            "weight_versions": [{"version": VERSION, "start": 0, "end": len(ids)}],
        }
        usage = {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(ids)}
        return {"request_id": "instant", "usage": usage, "choices": [choice]}

    def answer(self, prompt: str) -> str:
        """What the policy writes after the whole prompt."""
        asked = ASKED.search(prompt)
        return asked[1] if asked else ""

    async def weight_info(self, _: web.Request) -> web.Response:
        """Version 0, for ever."""
        return web.json_response({"weight_version": VERSION})

    async def health(self, _: web.Request) -> web.Response:
        """Well."""
        return web.Response()


async def serve(engine: Instant) -> None:
    """Until standard input ends."""
    runner = web.AppRunner(engine.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(Instant(ChatFormat.load(Path(sys.argv[1])))))
