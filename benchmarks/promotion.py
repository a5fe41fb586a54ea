"""From a promotion to the first token on the new weights, felt by clients that never stop streaming.

Head goes back and forth between two checkpoints (`SetHead`); meanwhile OpenAI clients stream through the
gateway from the engine that has to reload.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, AsyncOpenAI

from benchmarks.checkpoints import set_head, two_checkpoints
from benchmarks.figures import Figure, Limit, percentile
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, BenchmarkFailed, bench
from upcycle.api.registry.v1.registry_pb2 import Checkpoint

CLIENTS = 8
MAX_TOKENS = 32
_SERVED_S = 60.0
_PAUSE_S = 0.9
_PROMPT = "Alert: amber-cart is failing. Find the service at fault and the cause."


@dataclass(slots=True)
class Traffic:
    """What clients felt. first_token_at: perf_counter of the first token of each version since `forget`."""

    requests: int = 0
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    first_token_at: dict[int, float] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def first_token(self, version: int, asked_at: float) -> None:
        """Note a first token."""
        now = time.perf_counter()
        self.waits_s.append(now - asked_at)
        self.first_token_at.setdefault(version, now)
        self.arrived.set()

    async def of(self, version: int) -> float:
        """When the first token of a version came. Raises TimeoutError."""
        async with asyncio.timeout(_SERVED_S):
            while version not in self.first_token_at:
                self.arrived.clear()
                await self.arrived.wait()
        return self.first_token_at[version]


async def measure(options: Options) -> list[Figure]:
    """Two checkpoints, then promotions under load."""
    async with bench(model=MODEL) as running:
        checkpoints = await two_checkpoints(running, options.scratch)
        async with _traffic(running, CLIENTS) as traffic:
            waits = await _promote(running, traffic, checkpoints, options.sized(100, 4))
    if traffic.failures:
        raise BenchmarkFailed(f"{len(traffic.failures)} requests failed, first: {traffic.failures[0]}")
    load = f"{CLIENTS} clients streaming, {traffic.requests} requests"
    promotions = tuple(wait * 1e3 for wait in waits)
    names = "promotion to the first token on the new weights, through the gateway"
    return [
        Figure(f"{names}, p50", "ms", (percentile(promotions, 50),), note=f"{len(waits)} promotions, {load}"),
        Figure(
            f"{names}, p95", "ms", (percentile(promotions, 95),), note=f"slowest {max(promotions):.0f} ms"
        ),
        Figure(
            "requests failed during reloads under load",
            f"of {traffic.requests}",
            (float(len(traffic.failures)),),
            limit=Limit(0, "", at_most=True),
        ),
        Figure(
            "wait of any request for its first token meanwhile, p99",
            "ms",
            (percentile(traffic.waits_s, 99) * 1e3,),
            note=f"p50 {percentile(traffic.waits_s, 50) * 1e3:.1f} ms",
        ),
    ]


async def _promote(
    running: Bench, traffic: Traffic, checkpoints: list[Checkpoint], count: int
) -> list[float]:
    """Seconds from the call of SetHead to the first token of that checkpoint; the first move only warms."""
    waits = []
    for number in range(count + 1):
        target = checkpoints[(number + 1) % 2]
        traffic.first_token_at.pop(target.version, None)
        began = time.perf_counter()
        await set_head(running, target)
        waits.append(await traffic.of(target.version) - began)
        await asyncio.sleep(_PAUSE_S)
    return waits[1:]


@asynccontextmanager
async def _traffic(running: Bench, clients: int) -> AsyncIterator[Traffic]:
    """Clients that ask again as soon as they are answered; no retries, so every failure is seen."""
    traffic = Traffic()
    where = running.addresses
    async with AsyncOpenAI(
        base_url=where.gateway_url, api_key=where.gateway_key(), max_retries=0, timeout=30
    ) as client:
        tasks = [asyncio.create_task(_ask_forever(client, traffic)) for _ in range(clients)]
        try:
            yield traffic
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


async def _ask_forever(client: AsyncOpenAI, traffic: Traffic) -> None:
    while True:
        try:
            await _ask(client, traffic)
            traffic.requests += 1
        except APIError as error:
            traffic.failures.append(f"{type(error).__name__}: {error}")
            traffic.requests += 1


async def _ask(client: AsyncOpenAI, traffic: Traffic) -> None:
    """One streamed chat completion."""
    asked_at = time.perf_counter()
    messages: Any = [{"role": "user", "content": _PROMPT}]
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=MAX_TOKENS, stream=True
    )
    version = int(raw.headers["x-upcycle-version"])
    is_first = True
    stream: Any = raw.parse()
    async for _ in await stream if asyncio.iscoroutine(stream) else stream:
        if is_first:
            traffic.first_token(version, asked_at)
            is_first = False
        traffic.tokens += 1
