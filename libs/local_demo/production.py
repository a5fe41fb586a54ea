"""The production app of the demo: an OpenAI client that never stops asking, and notes who answered.

It measures what an app would feel: requests that failed while weights were reloaded, and how long after a
promotion the first token came from the promoted weights.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, AsyncOpenAI

PAUSE_S = 0.25
REQUEST_TIMEOUT_S = 30.0
MAX_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ProductionAnswer:
    """One answered request: whose weights, and when (Unix seconds) the first token arrived."""

    version: int
    digest: str
    first_token_at: float


@dataclass(slots=True)
class Production:
    """Counts requests and failures; remembers the first answer of each version."""

    base_url: str
    api_key: str
    model: str
    messages: Sequence[dict[str, str]]
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    first_answers: dict[int, ProductionAnswer] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _client: AsyncOpenAI | None = None

    async def start(self) -> None:
        """Begin asking, one request after the other."""
        self._client = AsyncOpenAI(
            base_url=self.base_url, api_key=self.api_key, max_retries=0, timeout=REQUEST_TIMEOUT_S
        )
        self._task = asyncio.create_task(self._ask_forever(self._client), name="production-app")

    async def stop(self) -> None:
        """Stop asking; the request in flight is abandoned."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._client is not None:
            await self._client.close()

    async def ask(self, client: AsyncOpenAI | None = None) -> ProductionAnswer:
        """One streamed chat completion. Raises openai.APIError."""
        streaming = client or self._client
        if streaming is None:
            raise RuntimeError("the production app was not started")
        messages: Any = list(self.messages)
        raw = await streaming.chat.completions.with_raw_response.create(
            model=self.model, messages=messages, max_tokens=MAX_TOKENS, stream=True
        )
        stream: Any = await _parsed(raw)
        first_token_at = 0.0
        async for _ in stream:
            first_token_at = first_token_at or time.time()
        headers = raw.headers
        return ProductionAnswer(
            int(headers["x-upcycle-version"]), headers["x-upcycle-digest"], first_token_at
        )

    async def _ask_forever(self, client: AsyncOpenAI) -> None:
        while True:
            self.requests += 1
            try:
                answer = await self.ask(client)
            except APIError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                self.first_answers.setdefault(answer.version, answer)
            await asyncio.sleep(PAUSE_S)


async def _parsed(raw: Any) -> Any:
    parsed = raw.parse()
    return await parsed if asyncio.iscoroutine(parsed) else parsed
