"""What the watch of head costs a training run beside it: the same run with the watch's pairs and without.

Each time on a platform of its own, in turns. A short run trains a checkpoint, which becomes head; where the
watch is on, its first pairs are out when the measured run is submitted, and make way for it.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from examples.incident.recipe import RECIPE
from examples.incident.tasks import held_out, practice

from benchmarks.figures import Figure, Limit, Peer
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, BenchmarkFailed, bench
from local_demo.head_watch import WATCH, pairs_played
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListCheckpointsRequest, SetHeadRequest
from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest
from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec
from upcycle.run_client import is_over
from upcycle.run_config import Gate
from upcycle.run_config.wire import spec_to_wire

PAIRS: Final = 1000
MOST: Final = 1.1
"""The watch may take a tenth of the seconds of engines that training took."""
_WAIT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Beside:
    """Seconds of the measured run, and pairs of the watch that were played meanwhile."""

    seconds: float
    pairs: int


async def measure(options: Options) -> list[Figure]:
    """Seconds of a training run beside the watch over its seconds without."""
    steps = options.sized(12, 1)
    watched, alone = list[Beside](), list[Beside]()
    for seed in range(options.repeats(3)):
        for pairs, measured in ((PAIRS, watched), (0, alone)):
            measured.append(await _train(pairs, steps, seed))
    ratio = statistics.median(one.seconds / other.seconds for one, other in zip(watched, alone, strict=True))
    without = statistics.median(one.seconds for one in alone)
    return [
        Figure(
            f"training run of {steps} steps beside the watch of head",
            "s",
            tuple(one.seconds for one in watched),
            Peer("the same run without a watch", without, "s", ratio),
            Limit(MOST, "×", at_most=True, of_ratio=True),
            f"{' / '.join(str(one.pairs) for one in watched)} pairs of it meanwhile",
        )
    ]


async def _train(pairs: int, steps: int, seed: int) -> Beside:
    async with bench(model=MODEL, extra_env={"CHECKPOINT_REGISTRY_WATCH_PAIRS": str(pairs)}) as running:
        await running.register(practice)
        await running.register(held_out)
        await _new_head(running, seed)
        if pairs:
            await _until(lambda: _is_watching(running), "the first pairs of the watch")
        played = pairs_played(await _watches(running))
        began = time.monotonic()
        await running.complete(recipe_run(steps, seed))
        return Beside(time.monotonic() - began, pairs_played(await _watches(running)) - played)


async def _new_head(running: Bench, seed: int) -> None:
    """A checkpoint of two steps, whatever the gate thinks of it."""
    await running.complete(recipe_run(2, seed, gate=Gate(held_out.name, attempts=2, regression_margin=1.0)))
    await _until(lambda: _is_idle(running), "the gate's verdict")
    registry = running.platform.registry
    model = (await registry.GetModel(GetModelRequest(model=MODEL), timeout=10)).model
    if model.head_version == model.newest_version:
        return
    found = await registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=10)
    (newest,) = (one for one in found.checkpoints if one.version == model.newest_version)
    head = SetHeadRequest(
        model=MODEL, checkpoint_id=newest.checkpoint_id, actor="benchmark", reason="to be watched"
    )
    await registry.SetHead(head, timeout=10)


def recipe_run(steps: int, seed: int, gate: Gate | None = None) -> RunSpec:
    """The recipe's run on `practice`."""
    training = replace(RECIPE.training, steps=steps, checkpoint_every_steps=steps, seed=seed)
    run = replace(RECIPE.run.run, taskset=practice.name, training=training, gate=gate)
    return spec_to_wire(replace(run, sampling=replace(RECIPE.run.sampling, seed=seed)))


async def _runs(running: Bench) -> list[Run]:
    found = await running.platform.tasksets.ListRuns(ListRunsRequest(limit=500, model=MODEL), timeout=10)
    return list(found.runs)


async def _watches(running: Bench) -> list[Run]:
    return [run for run in await _runs(running) if run.spec.label.startswith(f"{WATCH} ")]


async def _is_watching(running: Bench) -> bool:
    return any(run.counts.in_flight for run in await _watches(running))


async def _is_idle(running: Bench) -> bool:
    return all(is_over(run) or run.spec.label.startswith(f"{WATCH} ") for run in await _runs(running))


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Raises BenchmarkFailed after a while."""
    give_up_at = time.monotonic() + _WAIT_S
    while not await holds():
        if time.monotonic() > give_up_at:
            raise BenchmarkFailed(f"{what} did not come within {_WAIT_S:g} s")
        await asyncio.sleep(0.2)
