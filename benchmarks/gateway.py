"""What a request costs in the gateway: processor time, with keys, limits and metering, and with recording.

The engine answers at once and is not counted, nor are the clients, which keep their connections.
"""

import asyncio
import statistics
from collections.abc import Mapping
from typing import Final

from benchmarks import processor_time
from benchmarks.figures import Figure, Limit
from benchmarks.http_load import Kind, Load, asked
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, instant_bench
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD

CLIENTS: Final = 16
_REQUESTS: Final = (2000, 100)
_REPEATS: Final = 5
_SETTLED_S: Final = 1.0
"""Until usage rows of the last requests are written."""
_FEW, _MANY = 64, 512
LIMITS: Final = {
    "MODEL_GATEWAY_KEY_REQUESTS_PER_MINUTE": "100000000",
    "MODEL_GATEWAY_KEY_TOKENS_PER_MINUTE": "10000000000",
    "MODEL_GATEWAY_KEY_CONCURRENCY": "100000",
}


KINDS: Final = (Kind(1), Kind(_FEW), Kind(_FEW, True), Kind(_MANY), Kind(_MANY, True))


async def measure(options: Options) -> list[Figure]:
    """Every kind in turns."""
    count = options.sized(*_REQUESTS)
    costs: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    rates: list[float] = []
    running_engine = instant_bench("benchmarks.instant_answers", channel=CHANNEL_HEAD, **LIMITS)
    async with running_engine as running:
        await _asked(running, Kind(1), count)
        for _ in range(options.repeats(_REPEATS)):
            for kind in KINDS:
                cost_ms, rate = await _asked(running, kind, count)
                costs[kind].append(cost_ms)
                if kind == KINDS[0]:
                    rates.append(rate)
    return _figures(costs, rates)


async def _asked(running: Bench, kind: Kind, count: int) -> tuple[float, float]:
    """Milliseconds of the gateway's processor time for a request, and requests per second. Raises
    BenchmarkFailed."""
    load = Load(kind, MODEL, running.addresses.gateway_key(), count)
    before = processor_time.by_process(running.stack)
    rate = await asked(load, running.addresses.gateway_url, CLIENTS)
    await asyncio.sleep(_SETTLED_S)
    spent = processor_time.spent(before, processor_time.by_process(running.stack), count)
    return spent["model_gateway"], rate


def _figures(costs: Mapping[Kind, list[float]], rates: list[float]) -> list[Figure]:
    added = {tokens: _added(costs, tokens) for tokens in (_FEW, _MANY)}
    per_token = [
        1e3 * (many - few) / (_MANY - _FEW) for few, many in zip(added[_FEW], added[_MANY], strict=True)
    ]
    alone = costs[Kind(1)]
    of_a_processor = f"{1e3 / statistics.median(alone):,.0f} requests/s of one processor"
    return [
        Figure(
            "gateway, processor time of a chat request, keys, limits and metering on", "ms", tuple(alone),
            limit=Limit(0.3, " ms", at_most=True), note=of_a_processor,
        ),
        Figure(
            f"requests per second of one gateway process, {CLIENTS} clients", "/s", tuple(rates),
            limit=Limit(3000, "/s", at_most=False),
        ),
        Figure(
            f"recording, added processor time at {_FEW} sampled tokens", "ms", tuple(added[_FEW]),
            limit=Limit(0.15, " ms", at_most=True),
        ),
        Figure(
            f"recording, added processor time of each further token, to {_MANY}", "µs", tuple(per_token),
            limit=Limit(1.0, " µs", at_most=True),
        ),
    ]  # fmt: skip


def _added(costs: Mapping[Kind, list[float]], tokens: int) -> list[float]:
    plain, recorded = costs[Kind(tokens)], costs[Kind(tokens, True)]
    return [with_it - without for with_it, without in zip(recorded, plain, strict=True)]
