"""Costs of the platform of one tree, as a JSON line: run with that tree's Python, in its folder.

`python walls_probe.py SCRATCH [--quick]`, PYTHONPATH being the tree: `benchmarks` is the tree's own.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks import pipeline, processor_time
from benchmarks.options import Options
from benchmarks.stacks import MODEL, bench
from openai import AsyncOpenAI

_CLIENTS = 8
_REQUESTS = (800, 40)
_PROMPT = "Alert: amber-cart is failing. Find the service at fault and the cause."


async def episodes(options: Options) -> dict[str, float]:
    """Episodes per second, and processor time of one over all processes."""
    async with pipeline._warm(options) as running:
        rate, cost = await pipeline._rate_and_cost(options, running)
    return {"episodes_per_s": rate, "episode_ms": sum(cost.values())}


async def served(options: Options) -> dict[str, float]:
    """Seconds until everything is ready, of the clock and of processors, and the gateway's part of a request
    for one token."""
    count, began = options.sized(*_REQUESTS), time.perf_counter()
    async with bench(model=MODEL) as running:
        ready_s, started = time.perf_counter() - began, processor_time.by_process(running.stack)
        where = running.addresses
        async with AsyncOpenAI(base_url=where.gateway_url, api_key=where.gateway_key(), timeout=30) as client:
            await _ask(client, _CLIENTS)
            before = processor_time.by_process(running.stack)
            await asyncio.gather(*(_ask(client, count // _CLIENTS) for _ in range(_CLIENTS)))
            after = processor_time.by_process(running.stack)
    spent = processor_time.spent(before, after, count)
    return {"ready_s": ready_s, "start_s": sum(started.values()), "request_ms": spent["model_gateway"]}


async def _ask(client: AsyncOpenAI, times: int) -> None:
    for _ in range(times):
        await client.chat.completions.create(
            model=MODEL, max_tokens=1, messages=[{"role": "user", "content": _PROMPT}]
        )


if __name__ == "__main__":
    given = Options(Path(sys.argv[1]), quick="--quick" in sys.argv)
    print(json.dumps({**asyncio.run(episodes(given)), **asyncio.run(served(given))}))
