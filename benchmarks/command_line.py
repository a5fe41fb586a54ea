"""How long a person waits for the command line."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.echo import taskset
from benchmarks.figures import Figure, Limit
from benchmarks.options import Options
from benchmarks.stacks import BenchmarkFailed, evaluation, instant_bench

HELP_LIMIT_MS, WHY_LIMIT_MS = 300.0, 1000.0
_LIMIT_S = 60.0
_EPISODES = 64


async def measure(options: Options) -> list[Figure]:
    """Wall time of whole processes, warm page cache."""
    repeats = options.repeats(15)
    helped = await _wall_ms(("--help",), {}, repeats)
    async with instant_bench() as bench:
        await bench.register(tasks := taskset(_EPISODES))
        run = await bench.complete(evaluation(tasks.name))
        peers = {f"UPCYCLE_PEERS_{name.upper()}": where for name, where in bench.stack.peers.items()}
        explained = await _wall_ms(("why", run.run_id), peers, repeats)
    return [
        _figure("`upcycle --help`", helped, HELP_LIMIT_MS),
        _figure("`upcycle why RUN`", explained, WHY_LIMIT_MS),
    ]


def _figure(name: str, walls: tuple[float, ...], limit_ms: float) -> Figure:
    limit = Limit(limit_ms, " ms", at_most=True)
    return Figure(name, "ms", walls, limit=limit, note=f"best of {len(walls)}: {min(walls):.0f} ms")


async def _wall_ms(arguments: tuple[str, ...], env: Mapping[str, str], repeats: int) -> tuple[float, ...]:
    """The first of them is thrown away: it warms the page cache."""
    walls = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await _run(arguments, env)
        walls.append((time.perf_counter() - began) * 1e3)
    return tuple(walls[1:])


async def _run(arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
    program = str(Path(sys.executable).parent / "upcycle")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env={**os.environ, **env}, stdout=pipe, stderr=pipe
    )
    async with asyncio.timeout(_LIMIT_S):
        _, err = await process.communicate()
    if process.returncode:
        raise BenchmarkFailed(f"upcycle {' '.join(arguments)} failed: {err.decode()[-1000:]}")
