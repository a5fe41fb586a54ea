"""The gateway beside LiteLLM's proxy, Envoy and nginx: the same engine, the same clients, one run, in turns.

The gateway checks keys, limits and meters; LiteLLM checks a key; Envoy and nginx pass bytes on. Each is one
process with one worker. The engine answers at once and is not counted, nor are the clients.
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import processor_time, proxies
from benchmarks.figures import Figure, Limit, Peer
from benchmarks.gateway import LIMITS
from benchmarks.http_load import Kind, Load, asked
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, BenchmarkFailed, instant_bench
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD

CLIENTS: Final = 16
STREAMS: Final = 2000
_REQUESTS: Final = (1000, 50)
_OF_LITELLM: Final = (100, 20)
"""It answers so few a second."""
_ALONE: Final = (100, 20)
"""Requests of one client, for latencies."""
_REPEATS: Final = 3
_LONG: Final = (30_000, 400)
_ANSWER, _STREAM = Kind(1), Kind(8, is_streamed=True)
_SLOW_STREAM: Final = Kind(40, is_streamed=True, pause_ms=500)
_SETTLED_S: Final = 1.0
_PAGE_MIB: Final = 4096 / (1 << 20)


@dataclass(slots=True)
class Contender:
    """What was measured of one. pid: None of the engine itself."""

    name: str
    url: str
    key: str
    pid: int | None
    count: int
    cpu_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)

    def load(self, kind: Kind, count: int) -> Load:
        """Of requests that this one is asked."""
        return Load(kind, MODEL, self.key, count)


async def measure(options: Options) -> list[Figure]:
    """All in turns; then streams and memory of ours."""
    async with _running(options) as contenders:
        direct, ours = contenders[:2]
        for one in contenders:
            await asked(one.load(_ANSWER, one.count // 4), one.url, CLIENTS)
        for _ in range(options.repeats(_REPEATS)):
            for one in contenders:
                await _measured(one, options)
        figures = [*_costs(contenders[1:]), *_rates(contenders[1:]), *_latencies(direct, contenders[1:])]
        figures += await _streams(ours, options.sized(STREAMS, 50))
        return [*figures, await _memory(ours, options)]


@asynccontextmanager
async def _running(options: Options) -> AsyncIterator[list[Contender]]:
    count, few = options.sized(*_REQUESTS), options.sized(*_OF_LITELLM)
    async with AsyncExitStack() as stack:
        bench: Bench = await stack.enter_async_context(
            instant_bench("benchmarks.instant_answers", channel=CHANNEL_HEAD, **LIMITS)
        )
        pid = next(one.pid for one in bench.stack.processes if one.name == "model_gateway")
        where = bench.addresses
        found = [
            Contender("the engine itself", bench.engine_url, "", None, count),
            Contender("model_gateway", where.gateway_url, where.gateway_key() or "", pid, count),
        ]
        for start, most in ((proxies.litellm, few), (proxies.envoy, count), (proxies.nginx, count)):
            folder = options.scratch / start.__name__
            folder.mkdir()
            proxy = await stack.enter_async_context(start(bench.engine_url, folder))
            found.append(Contender(proxy.name, proxy.url, proxies.KEY, proxy.pid, most))
        yield found


async def _measured(one: Contender, options: Options) -> None:
    """Once: processor time and rate of many clients, latencies of one."""
    before = _cpu_s(one)
    one.rates.append(await asked(one.load(_ANSWER, one.count), one.url, CLIENTS))
    await asyncio.sleep(_SETTLED_S)
    one.cpu_ms.append(1e3 * (_cpu_s(one) - before) / one.count)
    alone = options.sized(*_ALONE)
    whole, streamed = one.load(_ANSWER, alone), one.load(_STREAM, alone)
    await asked(whole, one.url, 1)
    await asked(streamed, one.url, 1)
    one.whole_ms.append(1e3 * statistics.median(whole.whole_s))
    one.first_ms.append(1e3 * statistics.median(streamed.first_byte_s))


def _cpu_s(one: Contender) -> float:
    return 0.0 if one.pid is None else processor_time.of_process(one.pid)


def _costs(all_of: Sequence[Contender]) -> list[Figure]:
    ours, *others = all_of
    figures = []
    for other in others:
        theirs = statistics.median(other.cpu_ms)
        ratio = theirs / statistics.median(ours.cpu_ms)
        figures.append(
            Figure(
                f"processor time of a chat request, beside {other.name}", "ms", tuple(ours.cpu_ms),
                peer=Peer(other.name, theirs, "ms", ratio), limit=Limit(0.3, " ms", at_most=True),
            )
        )  # fmt: skip
    return figures


def _rates(all_of: Sequence[Contender]) -> list[Figure]:
    ours, *others = all_of
    figures = []
    for other in others:
        theirs = statistics.median(other.rates)
        is_litellm = other.name.startswith("LiteLLM")
        figures.append(
            Figure(
                f"requests per second of one process, {CLIENTS} clients, beside {other.name}", "/s",
                tuple(ours.rates),
                peer=Peer(other.name, theirs, "/s", statistics.median(ours.rates) / theirs),
                limit=Limit(20, "×", at_most=False, of_ratio=True) if is_litellm else None,
            )
        )  # fmt: skip
    return figures


def _latencies(direct: Contender, all_of: Sequence[Contender]) -> list[Figure]:
    """What each adds to an answer of the engine itself, of the same turn."""
    figures = []
    for what, name in (("answer, p50", "whole_ms"), ("first byte of a stream, p50", "first_ms")):
        base: list[float] = getattr(direct, name)
        added = {
            one.name: [with_it - without for with_it, without in zip(getattr(one, name), base, strict=True)]
            for one in all_of
        }
        ours = added.pop("model_gateway")
        said = ", ".join(f"{one} {statistics.median(values):.2f}" for one, values in added.items())
        note = f"{said}; the engine itself answers in {statistics.median(base):.2f} ms"
        figures.append(Figure(f"added to an {what}, one client".replace("an first", "a first"), "ms",
                              tuple(ours), note=note))  # fmt: skip
    return figures


async def _streams(ours: Contender, count: int) -> list[Figure]:
    """So many at once, each half a second between events."""
    load = ours.load(_SLOW_STREAM, count)
    before_s, before_mib = _cpu_s(ours), _resident_mib(ours)
    running = asyncio.create_task(asked(load, ours.url, count))
    await asyncio.sleep(_SLOW_STREAM.tokens * _SLOW_STREAM.pause_ms / 2e3)
    held_mib = _resident_mib(ours) - before_mib
    await running
    events = count * (_SLOW_STREAM.tokens + 1)
    note = (
        f"{1e6 * (_cpu_s(ours) - before_s) / events:.0f} µs of processor time for each event, "
        f"{1024 * held_mib / count:.0f} KiB of memory for each stream; first byte p99 "
        f"{1e3 * sorted(load.first_byte_s)[int(0.99 * count)]:.0f} ms, all opened at once"
    )
    return [
        Figure("streams open at once through one gateway process, all answered to their end", "",
               (float(load.most_open),), limit=Limit(count, "", at_most=False), note=note)
    ]  # fmt: skip


async def _memory(ours: Contender, options: Options) -> Figure:
    """Resident memory after a third of a long run, and what the rest adds. A quarter is recorded."""
    third = options.sized(*_LONG) // 3
    grown: list[float] = []
    for _ in range(3):
        await asked(ours.load(Kind(64), third * 3 // 4), ours.url, CLIENTS)
        await asked(ours.load(Kind(64, is_recorded=True), third // 4), ours.url, CLIENTS)
        grown.append(_resident_mib(ours))
    more = 100 * (grown[2] / grown[0] - 1)
    note = f"{', '.join(f'{mib:.0f}' for mib in grown)} MiB after each third; a quarter of them recorded"
    name = f"resident memory, from {third:,} to {3 * third:,} requests"
    return Figure(name, "% more", (more,), limit=Limit(5, " %", at_most=True), note=note)


def _resident_mib(one: Contender) -> float:
    if one.pid is None:
        raise BenchmarkFailed(f"{one.name} has no process of its own here")
    return int(Path(f"/proc/{one.pid}/statm").read_text().split()[1]) * _PAGE_MIB
