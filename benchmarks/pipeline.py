"""Episodes through the whole platform with an engine that costs nothing, beside a bare loop and HUD.

Every episode: planned, queued on the bus, played in an isolated process of its own, recorded in the object
store, graded, indexed, settled in the ledger.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import fmean

from benchmarks import hud, processor_time
from benchmarks.echo import echo, taskset
from benchmarks.figures import Figure, Limit, against, percentile
from benchmarks.options import Options
from benchmarks.stacks import Bench, BenchmarkFailed, evaluation, instant_bench
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST
from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest, ListTrajectoriesRequest, TrajectoryFilter
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
from upcycle.transcripts import Answer

CONCURRENCIES = (4, 16)
TARGET_RATIO = 150.0
TARGET_RATE = 130.0 if len(os.sched_getaffinity(0)) < 4 else 250.0
"""Episodes per second, on two cores and on four."""
TARGET_OVERHEAD_MS = 12.0
TARGET_COST_MS = 9.0
_EPISODES = (256, 32)
_LEDGER_S = 60.0
_AFTERWARDS_S = 2.0
"""How long the last facts may be folded after a run is completed."""
_NAMED = 7
"""Processes that a figure names."""


async def measure(options: Options) -> list[Figure]:
    """Throughput at each concurrency beside HUD's, then what one episode waits for."""
    figures = [await _beside_hud(options, concurrency) for concurrency in CONCURRENCIES]
    async with _warm(options) as bench:
        played = [await _rate_and_cost(options, bench) for _ in range(options.repeats(3))]
    figures.append(
        Figure(
            "whole platform, default settings",
            "episodes/s",
            tuple(rate for rate, _ in played),
            limit=Limit(TARGET_RATE, " episodes/s", at_most=False),
        )
    )
    figures.append(_cost([cost for _, cost in played]))
    return [*figures, *await _overheads(options)]


async def _rate_and_cost(options: Options, bench: Bench) -> tuple[float, dict[str, float]]:
    """Episodes per second, and milliseconds of processor time per episode by process."""
    before = processor_time.by_process(bench.stack)
    rate = await _rate(options, bench)
    await asyncio.sleep(_AFTERWARDS_S)
    after = processor_time.by_process(bench.stack)
    return rate, processor_time.spent(before, after, options.sized(*_EPISODES))


def _cost(costs: Sequence[dict[str, float]]) -> Figure:
    parts = [f"{name} {fmean(cost[name] for cost in costs):.1f}" for name in costs[0]]
    sums = tuple(sum(cost.values()) for cost in costs)
    limit = Limit(TARGET_COST_MS, " ms", at_most=True)
    note = ", ".join(parts[:_NAMED])
    return Figure("processor time of an episode, all processes", "ms", sums, limit=limit, note=note)


async def _beside_hud(options: Options, concurrency: int) -> Figure:
    """Taking turns, so that whatever else the machine does falls on both."""
    ours, theirs = [], []
    async with _warm(options, ROLLOUT_SAMPLER_EVAL_SLOTS=str(concurrency)) as bench:
        for _ in range(options.repeats(3)):
            theirs.append(await hud.throughput(options.sized(16, 6), concurrency, options.scratch))
            ours.append(await _rate(options, bench))
    return Figure(
        f"whole platform, {concurrency} at once",
        "episodes/s",
        tuple(ours),
        against(f"HUD {hud.VERSION} SubprocessRuntime", ours, theirs, "episodes/s"),
        Limit(TARGET_RATIO, "×", at_most=False, of_ratio=True),
    )


@asynccontextmanager
async def _warm(options: Options, **env: str) -> AsyncIterator[Bench]:
    """A platform that played the echo tasks once."""
    async with instant_bench(channel=CHANNEL_LATEST, **env) as bench:
        await bench.register(taskset(options.sized(*_EPISODES)))
        await _rate(options, bench)
        yield bench


async def _rate(options: Options, bench: Bench) -> float:
    """Episodes per second from SubmitRun to a run that is completed."""
    tasks = taskset(options.sized(*_EPISODES))
    began = time.perf_counter()
    await _play(bench, tasks.name, len(tasks))
    return len(tasks) / (time.perf_counter() - began)


async def _play(bench: Bench, name: str, count: int) -> Run:
    """One evaluation; all of it graded, all of it right."""
    run = await bench.complete(evaluation(name))
    graded = run.counts.by_state["evaluated"]
    if graded != count or run.success_rate != 1.0:
        raise BenchmarkFailed(f"{graded} of {count} episodes were graded, success {run.success_rate:g}")
    return run


async def _overheads(options: Options) -> list[Figure]:
    """Seconds from requested to graded with one episode in flight, beside the same scenarios in a loop."""
    count, repeats = options.sized(80, 8), options.repeats(2)
    spans: list[list[float]] = []
    async with instant_bench(SCENARIO_RUNNER_EVAL_EPISODES_IN_FLIGHT="1") as bench:
        await bench.register(tasks := taskset(count))
        await _play(bench, tasks.name, count)
        for _ in range(repeats):
            run = await _play(bench, tasks.name, count)
            spans.append([span * 1e3 for span in await _requested_to_graded(bench, run)])
    bare = [1e3 / await _bare_loop(count) for _ in range(repeats)]
    note = f"the same scenarios in a bare loop: {min(bare):.3f} ms"
    return [
        Figure(
            f"overhead of one episode, requested to graded, p{percent}",
            "ms",
            tuple(percentile(run_spans, percent) for run_spans in spans),
            limit=Limit(TARGET_OVERHEAD_MS, " ms", at_most=True) if percent == 50 else None,
            note=note,
        )
        for percent in (50, 99)
    ]


async def _requested_to_graded(bench: Bench, run: Run) -> list[float]:
    """Seconds per episode, by the store's own time stamps."""
    await _settled(bench, run.run_id)
    return [
        summary.graded_at.ToMicroseconds() / 1e6 - summary.ledger.requested_at.ToMicroseconds() / 1e6
        for summary in await _summaries(bench, run.run_id)
    ]


async def _settled(bench: Bench, run_id: str) -> None:
    async with asyncio.timeout(_LEDGER_S):
        while True:
            request = GetLedgerRequest(run_id=run_id)
            ledger = await bench.platform.trajectories.GetLedger(request, timeout=10)
            if ledger.requested and not ledger.in_flight:
                return
            await asyncio.sleep(0.1)


async def _summaries(bench: Bench, run_id: str) -> Sequence[TrajectorySummary]:
    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=run_id), page_size=1000)
    listed = await bench.platform.trajectories.ListTrajectories(request, timeout=30)
    return listed.trajectories


async def _bare_loop(count: int) -> float:
    """Episodes per second in this process: no isolation, no record, no queue."""
    began = time.perf_counter()
    for number in range(count):
        play = echo.play({"number": number})
        await play.start()
        result = await play.grade(Answer(str(number)))
        assert result.score == 1.0
    return count / (time.perf_counter() - began)
