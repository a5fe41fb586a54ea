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
from benchmarks.stacks import BenchmarkFailed, evaluation, instant_bench, platform_variables

HELP_LIMIT_MS, WHY_LIMIT_MS = 300.0, 1000.0
FIRST_PLAY_LIMIT_S, PLAY_LIMIT_S = 5.0, 1.0
_LIMIT_S = 60.0
_EPISODES = 64
_PLAY = ("play", "tasks.py", "--script", "player.py")


async def measure(options: Options) -> list[Figure]:
    """Wall time of whole processes, warm page cache."""
    repeats = options.repeats(15)
    helped = await _wall_ms(("--help",), {}, repeats)
    async with instant_bench() as bench:
        await bench.register(tasks := taskset(_EPISODES))
        run = await bench.complete(evaluation(tasks.name))
        explained = await _wall_ms(("why", run.run_id), platform_variables(bench.addresses), repeats)
    return [
        _figure("`upcycle --help`", helped, HELP_LIMIT_MS),
        _figure("`upcycle why RUN`", explained, WHY_LIMIT_MS),
        *await _first_minutes(options.scratch, options.repeats(5)),
    ]


async def _first_minutes(scratch: Path, repeats: int) -> list[Figure]:
    """From nothing to the first episode of a new project, and an episode of the incident project."""
    first, played = [], []
    for number in range(repeats):
        new, incident = scratch / f"new-{number}", scratch / f"incident-{number}"
        began = time.perf_counter()
        await _run(("init", str(new)), {})
        await _run(_PLAY, {}, new)
        first.append(time.perf_counter() - began)
        await _run(("init", str(incident), "--preset", "incident", "--demonstrations", "0"), {})
        played += [wall / 1e3 for wall in await _wall_ms(_PLAY, {}, 1, incident)]
    return [
        Figure(
            "`upcycle init` with 400 demonstrations, and the first `upcycle play`", "s", tuple(first),
            limit=Limit(FIRST_PLAY_LIMIT_S, " s", at_most=True), note="preset blank",
        ),
        Figure(
            "`upcycle play` of one incident episode by a script", "s", tuple(played),
            limit=Limit(PLAY_LIMIT_S, " s", at_most=True), note="five turns, four tools",
        ),
    ]  # fmt: skip


def _figure(name: str, walls: tuple[float, ...], limit_ms: float) -> Figure:
    limit = Limit(limit_ms, " ms", at_most=True)
    return Figure(name, "ms", walls, limit=limit, note=f"best of {len(walls)}: {min(walls):.0f} ms")


async def _wall_ms(
    arguments: tuple[str, ...], env: Mapping[str, str], repeats: int, folder: Path | None = None
) -> tuple[float, ...]:
    """The first of them is thrown away: it warms the page cache."""
    walls = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        await _run(arguments, env, folder)
        walls.append((time.perf_counter() - began) * 1e3)
    return tuple(walls[1:])


async def _run(arguments: tuple[str, ...], env: Mapping[str, str], folder: Path | None = None) -> None:
    program = str(Path(sys.executable).parent / "upcycle")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env={**os.environ, **env}, stdout=pipe, stderr=pipe, cwd=folder
    )
    async with asyncio.timeout(_LIMIT_S):
        _, err = await process.communicate()
    if process.returncode:
        raise BenchmarkFailed(f"upcycle {' '.join(arguments)} failed: {err.decode()[-1000:]}")
