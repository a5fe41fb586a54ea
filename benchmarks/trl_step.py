"""One optimizer step on a recorded batch: ours beside TRL's GRPOTrainer, same model, loss, dtype and threads.

The programs take turns in processes of their own, so that the machine's other work meets both alike. Both
say loss and gradient norm of the first step, which have to agree: what is timed is the same step.
"""

import asyncio
import json
import math
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import trl
from benchmarks.figures import Figure, Limit, number
from benchmarks.options import Options
from benchmarks.stacks import REPOSITORY, BenchmarkFailed
from benchmarks.step_batches import Shape, draw, new_policy, write_rows

THREADS: Final = min(2, os.cpu_count() or 1)
MICROBATCH: Final = 8192
"""The trainer's default."""
ONE_PASS: Final = 1 << 20
"""As TRL computes it: the whole batch at once."""
UNIFORM: Final = Shape("uniform", prompts=16, members=8, prompt=64, shortest=64, longest=64)
RAGGED: Final = Shape("ragged", prompts=8, members=8, prompt=64, shortest=40, longest=640, turn=20)
MAX_TIME: Final = {"uniform": 0.8, "ragged": 0.4}
MAX_MEMORY: Final = 0.5
_WAITING: Final = "OMP_WAIT_POLICY=ACTIVE"
"""Each has its cores to itself; the trainer's default, threads that sleep at barriers, is for shared ones."""
_AGREEMENT: Final = 1e-4
_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one process said. peak_mib: what its steps added to its memory."""

    seconds: tuple[float, ...]
    peak_mib: float
    loss: float
    grad_norm: float


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of each: ours by default settings, ours in one pass, ours with every prompt computed for every
    member, TRL."""

    default: Run
    one_pass: Run
    unshared: Run
    peer: Run


async def measure(options: Options) -> list[Figure]:
    """Both batches; the ragged one also in memory."""
    python = await trl.prepare()
    await asyncio.to_thread(new_policy, options.scratch / "policy")
    figures = []
    for shape in (UNIFORM, RAGGED):
        path = options.scratch / f"{shape.name}.npz"
        rows = draw(shape)
        write_rows(path, rows, prompt=shape.prompt)
        pairs = [await _pair(path, python, options) for _ in range(options.repeats(3))]
        tokens = sum(row.token_ids.shape[0] for row in rows)
        padded = len(rows) * max(row.token_ids.shape[0] for row in rows)
        said = f"{len(rows)} rows, {tokens:,} tokens, {padded:,} with padding"
        figures.append(_time(shape, pairs, said))
        if shape.is_ragged:
            figures.append(_memory(pairs))
    return figures


def _time(shape: Shape, pairs: list[Pair], said: str) -> Figure:
    ratios = [_median(pair.default) / _median(pair.peer) for pair in pairs]
    runs = ((pair.default, pair.peer, pair.one_pass, pair.unshared) for pair in pairs)
    ours, theirs, whole, unshared = (
        number(statistics.median(_median(run) for run in column)) for column in zip(*runs, strict=True)
    )
    times = (
        f"{ours} s, TRL {trl.VERSION} {theirs} s; in one pass {whole} s, without shared prompts {unshared} s"
    )
    return Figure(
        f"optimizer step, {shape.name} batch, time over TRL's",
        "×",
        tuple(ratios),
        limit=Limit(MAX_TIME[shape.name], "×", at_most=True),
        note=f"{times}; {said}; {THREADS} threads, float32",
    )


def _memory(pairs: list[Pair]) -> Figure:
    ratios = [pair.one_pass.peak_mib / pair.peer.peak_mib for pair in pairs]
    mib = (
        statistics.median(run.peak_mib for run in runs)
        for runs in zip(*((pair.one_pass, pair.peer, pair.default) for pair in pairs), strict=True)
    )
    one_pass, theirs, default = (number(value) for value in mib)
    return Figure(
        "optimizer step, ragged batch, peak memory over TRL's, both in one pass",
        "×",
        tuple(ratios),
        limit=Limit(MAX_MEMORY, "×", at_most=True),
        note=f"{one_pass} MiB, TRL {theirs} MiB; with our default microbatches {default} MiB",
    )


def _median(run: Run) -> float:
    return statistics.median(run.seconds)


async def _pair(path: Path, python: Path, options: Options) -> Pair:
    repeats = options.repeats(5)
    policy = options.scratch / "policy"
    ours = [
        await _run(
            sys.executable, "-m", "benchmarks.packed_step", policy, path, THREADS, repeats, tokens, share
        )
        for tokens, share in ((MICROBATCH, 1), (ONE_PASS, 1), (ONE_PASS, 0))
    ]
    program = REPOSITORY / "benchmarks" / "peers" / "trl_step.py"
    theirs = await _run(python, program, policy, path, THREADS, repeats)
    for run in ours:
        for name in ("loss", "grad_norm"):
            one, other = getattr(run, name), getattr(theirs, name)
            if not math.isclose(one, other, rel_tol=_AGREEMENT, abs_tol=1e-6):
                raise BenchmarkFailed(f"{path.stem}: our {name} is {one}, TRL's {other}: not the same step")
    default, one_pass, unshared = ours
    return Pair(default, one_pass, unshared, theirs)


async def _run(*argv: object) -> Run:
    said = await trl.output(("env", _WAITING, *map(str, argv)), REPOSITORY, limit_s=_LIMIT_S)
    values = json.loads(said.splitlines()[-1])
    return Run(tuple(values["seconds"]), values["peak_mib"], values["loss"], values["grad_norm"])
