"""Each question asked in turn of the large and of the almost empty platform."""

import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.postgres import BACKENDS, PostgresServer

from benchmarks.figures import Figure, Limit, Peer, number, percentile
from benchmarks.options import Options
from benchmarks.scale.platform import Platform, platform, sqlite_urls
from benchmarks.scale.questions import QUESTIONS, Question
from benchmarks.scale.restarts import restarts
from benchmarks.scale.size import Size
from benchmarks.scale.tables import FILLS

EMPTY: Final = Size(20)
LARGE: Final = Size(10_000)
_REPEATS: Final = 100
_LIMIT: Final = Limit(2.0, "×", at_most=True, of_ratio=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What `python -m benchmarks.scale` was asked for."""

    size: Size = LARGE
    backends: tuple[str, ...] = BACKENDS
    repeats: int = _REPEATS
    restarts: int = 2
    only: str = ""
    """Questions with this text in their names, and no restarts."""

    @property
    def questions(self) -> Iterable[Question]:
        """In their order: what is submitted first is swept later. Without a submission nothing is open."""
        return [one for one in QUESTIONS if self.only in one.name or one.name == "planner: submit"]


async def measure(options: Options) -> list[Figure]:
    """On every database that is here."""
    size = Size(options.sized(LARGE.runs, 40))
    return await measured(Plan(size=size, repeats=options.sized(_REPEATS, 8)), options.scratch)


async def measured(plan: Plan, scratch: Path) -> list[Figure]:
    """One database after the other: both are large."""
    figures: list[Figure] = []
    for backend in plan.backends:
        with _databases(backend, scratch) as urls:
            async with platform(urls[0], plan.size) as large, platform(urls[1], EMPTY) as empty:
                for question in plan.questions:
                    figures.append(await _ask(question, large, empty, backend, plan.repeats))
            if plan.restarts and not plan.only:
                figures += await _restarts(backend, urls, scratch, plan)
    return figures


@contextmanager
def _databases(backend: str, scratch: Path) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """URLs of a large and of an almost empty platform; gone at the end."""
    if backend == "postgres":
        with PostgresServer() as server:
            large, empty = ({service: server.database() for service in FILLS} for _ in range(2))
            yield large, empty
        return
    folders = [scratch / f"sqlite-{name}" for name in ("large", "empty")]
    yield sqlite_urls(folders[0]), sqlite_urls(folders[1])
    for folder in folders:
        shutil.rmtree(folder)


async def _restarts(
    backend: str, urls: tuple[dict[str, str], dict[str, str]], scratch: Path, plan: Plan
) -> list[Figure]:
    large, empty = [
        await restarts(scratch / f"{backend}-stack-{at}", one, plan.restarts) for at, one in enumerate(urls)
    ]
    name = "{}: from its start until it is ready"
    return [_compared(name.format(one), backend, plan.size, large[one], empty[one]) for one in large]


async def _ask(question: Question, large: Platform, empty: Platform, backend: str, repeats: int) -> Figure:
    """Turn and turn about, so that what else the machine does falls on both."""
    taken: dict[int, list[float]] = {id(large): [], id(empty): []}
    for _ in range(max(3, int(repeats * question.share))):
        for one in (large, empty):
            began = time.perf_counter()
            await question.ask(one)
            taken[id(one)].append((time.perf_counter() - began) * 1e3)
    return _compared(question.name, backend, large.size, taken[id(large)], taken[id(empty)])


def _compared(name: str, backend: str, size: Size, ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    slowest, without = percentile(ours, 99), percentile(theirs, 99)
    peer = Peer(f"{EMPTY.episodes:,} episodes", without, "ms", slowest / without)
    half, half_without = percentile(ours, 50), percentile(theirs, 50)
    times = f"p50 {number(half)} ms, {number(half / half_without)}× of {number(half_without)} ms"
    note = f"{size.episodes:,} episodes; {times}"
    figure = Figure(f"{name}, {backend}, p99", "ms", (slowest,), peer=peer, limit=_LIMIT, note=note)
    print(f"{figure.name}: {number(slowest)} ms, {figure.against}", flush=True)
    return figure
