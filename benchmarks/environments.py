"""Forked, isolated environments: how fast they start, what each costs, 2,048 of them alive at once.

Through scenario_runner's own host: zygote, sandbox (own session, limits, private folder, system-call filter),
control channel, scenario played to its prompt.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Limit
from benchmarks.options import Options
from benchmarks.stacks import REPOSITORY, BenchmarkFailed
from scenario_runner.adapters.cell import CellRules, Mode
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import EpisodeTimeouts, EpisodeToPlay, PythonEnvironment
from scenario_runner.ports import LiveEnvironment

ALIVE = 2048
_MOST_MIB = 8192.0
_STARTING_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Which:
    """A scenario of an environment file."""

    what: str
    source: PythonEnvironment
    scenario: str
    arguments: Mapping[str, Any]

    def episode(self, number: int, digest: str) -> EpisodeToPlay:
        """One to start, of the source of that digest, as a run names it."""
        deadline = datetime.now(UTC) + timedelta(minutes=10)
        name, arguments = f"bench-{number}", json.dumps(self.arguments)
        return EpisodeToPlay(name, self.source, self.scenario, arguments, deadline, source_digest=digest)


def _source(name: str, *parts: str) -> PythonEnvironment:
    return PythonEnvironment(name, str(REPOSITORY.joinpath(*parts)))


ECHO = Which("echo, which does nothing", _source("bench", "benchmarks", "echo.py"), "echo", {"number": 1})
INCIDENT = Which(
    "incident: SQLite, four tools",
    _source("incident", "examples", "incident", "env.py"),
    "investigate",
    {"split": "train", "seed": 7},
)


async def measure(options: Options) -> list[Figure]:
    """Start rate of the smallest and of a real environment, then many at once."""
    figures = []
    for which in (ECHO, INCIDENT):
        rates = await _start_rates(which, options.sized(300, 16), options.repeats(5))
        figures.append(Figure(f"environments forked and started ({which.what})", "per s", rates))
    return [*figures, *await _many_alive(options.sized(ALIVE, 32))]


async def _start_rates(which: Which, count: int, repeats: int) -> tuple[float, ...]:
    """From the request to the prompt; ending them is outside of the clock."""
    rates = []
    async with _host() as host:
        await _end(await _start(host, which, 8))
        for _ in range(repeats):
            began = time.perf_counter()
            live = await _start(host, which, count)
            rates.append(count / (time.perf_counter() - began))
            await _end(live)
    return tuple(rates)


async def _many_alive(count: int) -> list[Figure]:
    """All alive, each of them still answering, and what they take of the machine."""
    # In its cell the memory of an environment is read by root alone.
    async with _host("enforced" if os.getuid() == 0 else "off") as host:
        await _end(await _start(host, INCIDENT, 8))
        began = time.perf_counter()
        live = await _start(host, INCIDENT, count)
        seconds = time.perf_counter() - began
        (zygote,) = _children(os.getpid())
        pids = _children(zygote)
        if len(pids) != count:
            raise BenchmarkFailed(f"{len(pids)} processes are alive, expected {count}")
        memory = tuple(_private_mib(pid) for pid in pids)
        answered = await asyncio.gather(*(one.call_tool("list_issues", {}) for one in live))
        if any(outcome.is_error or not outcome.content for outcome in answered):
            raise BenchmarkFailed("an environment did not answer its tool call")
        await _end(live)
    alive = Figure(
        "environments alive at once, each answering a tool call",
        "",
        (float(count),),
        limit=Limit(count, "", at_most=False),
        note=f"all up after {seconds:.1f} s",
    )
    one = Figure("private memory of one environment (incident)", "MiB", memory)
    return [
        alive,
        one,
        Figure("the same of all of them", "MiB", (sum(memory),), limit=Limit(_MOST_MIB, "MiB", at_most=True)),
    ]


@asynccontextmanager
async def _host(cell: Mode = "enforced") -> AsyncIterator[ForkedHost]:
    """As the scenario runner builds it."""
    options = ZygoteOptions(
        Limits(), max_children=2 * ALIVE, start_timeout_s=60, fork_timeout_s=60, cell=CellRules(mode=cell)
    )
    host = ForkedHost(options, EpisodeTimeouts())
    try:
        yield host
    finally:
        await host.stop()


async def _start(host: ForkedHost, which: Which, count: int) -> list[LiveEnvironment]:
    gate = asyncio.Semaphore(_STARTING_AT_ONCE)
    digest = (await host.zygote(which.source)).source_digest

    async def one(number: int) -> LiveEnvironment:
        async with gate:
            return await host.start(which.episode(number, digest))

    return list(await asyncio.gather(*(one(number) for number in range(count))))


async def _end(live: Sequence[LiveEnvironment]) -> None:
    await asyncio.gather(*(environment.close() for environment in live))


def _children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _private_mib(pid: int) -> float:
    """Memory that would be free without this process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_")) / 1024
