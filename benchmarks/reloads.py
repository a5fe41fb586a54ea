"""What an engine samples while its weights change every second, and whether a token bears the wrong version.

Head goes back and forth between two checkpoints (`SetHead`) through the whole platform; the engine of head is
asked over HTTP as the samplers ask it, without a pause. Windows with and without promotions take turns.
Sampling is greedy, so that what a version says first is known: each token under its name must be what it says
alone.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from benchmarks.checkpoints import set_head, two_checkpoints
from benchmarks.figures import Figure, Limit, against
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, bench, prompt_of
from engine_client import Completion, EngineClient, EngineError, SamplingParams
from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD
from upcycle.api.registry.v1.registry_pb2 import ENGINE_STATE_READY, Checkpoint, EngineLease
from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest

CONCURRENCY: Final = 16
PROMPTS: Final = 32
PROMPT_TOKENS, NEW_TOKENS = 32, 64
WINDOW_S: Final = 10.0
EVERY_S: Final = 1.0
_SAMPLING: Final = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
_SERVED_S: Final = 60.0

Alone = dict[int, list[tuple[int, ...]]]
"""By version: what it says to each prompt."""


@dataclass(slots=True)
class Load:
    """What came back so far."""

    alone: Alone
    prompts: list[list[int]]
    tokens: int = 0
    requests: int = 0
    wrong: int = 0
    across: int = 0
    """Completions that a reload came into."""
    failures: list[str] = field(default_factory=list)

    def note(self, number: int, done: Completion) -> None:
        """Compare what the first version of a completion sampled with what it says alone. What comes behind a
        reload continues another version's text: nothing to compare it with."""
        self.requests += 1
        self.tokens += len(done.token_ids)
        self.across += len(done.version_spans) > 1
        first = done.version_spans[0]
        expected = self.alone[first.version][number][: first.end]
        self.wrong += sum(a != b for a, b in zip(done.token_ids, expected, strict=False))


async def measure(options: Options) -> list[Figure]:
    """Windows in turns, without and with a promotion a second."""
    still, moving = list[float](), list[float]()
    async with bench(model=MODEL) as running:
        checkpoints = await two_checkpoints(running, options.scratch)
        engine = await _engine(running, 0)
        async with EngineClient(engine.base_url) as client:
            load = Load(await _alone(running, client, checkpoints), _prompts())
            workers = [asyncio.create_task(_ask_forever(client, load, n)) for n in range(CONCURRENCY)]
            await asyncio.sleep(1.0)
            for _ in range(options.repeats(5)):
                still.append(await _window(load, options))
                moving.append(await _moving(running, load, checkpoints, options))
            await _ended(workers)
    return _figures(still, moving, load)


def _figures(still: Sequence[float], moving: Sequence[float], load: Load) -> list[Figure]:
    note = f"{CONCURRENCY} at once, {load.across} of {load.requests} completions had a reload within"
    peer = against("none", moving, still, "tokens/s")
    at_least = Limit(0.9, "×", at_most=False, of_ratio=True)
    none = Limit(0, "", at_most=True)
    return [
        Figure("embedded engine, one promotion a second", "tokens/s", tuple(moving), peer, at_least, note),
        Figure(
            "tokens under the name of a version that does not say them",
            f"of {load.tokens:,}",
            (float(load.wrong),),
            limit=none,
        ),
        Figure(
            "requests of samplers that failed meanwhile",
            f"of {load.requests:,}",
            (float(len(load.failures)),),
            limit=none,
            note="; ".join(load.failures[:1]),
        ),
    ]


async def _window(load: Load, options: Options) -> float:
    """Tokens a second."""
    tokens, began = load.tokens, time.perf_counter()
    await asyncio.sleep(options.sized(int(WINDOW_S), 2))
    return (load.tokens - tokens) / (time.perf_counter() - began)


async def _moving(running: Bench, load: Load, checkpoints: Sequence[Checkpoint], options: Options) -> float:
    """The same beside promotions; head ends where it began."""
    moves = asyncio.create_task(_promote(running, checkpoints))
    try:
        return await _window(load, options)
    finally:
        await _ended([moves])
        await _serve(running, checkpoints[0])


async def _promote(running: Bench, checkpoints: Sequence[Checkpoint]) -> None:
    number = 0
    while True:
        number += 1
        await set_head(running, checkpoints[number % 2])
        await asyncio.sleep(EVERY_S)


async def _serve(running: Bench, target: Checkpoint) -> None:
    """Have head's engine serve one checkpoint."""
    await set_head(running, target)
    await _engine(running, target.version)


async def _engine(running: Bench, version: int) -> EngineLease:
    """Of head, once it serves that version."""
    request = ListEnginesRequest(model=MODEL, channel=CHANNEL_HEAD)
    async with asyncio.timeout(_SERVED_S):
        while True:
            for engine in (await running.platform.registry.ListEngines(request, timeout=10)).engines:
                if engine.version == version and engine.state == ENGINE_STATE_READY:
                    return engine
            await asyncio.sleep(0.05)


async def _alone(running: Bench, client: EngineClient, checkpoints: Sequence[Checkpoint]) -> Alone:
    """What each version says while nothing moves; head ends at the first."""
    found: Alone = {}
    for target in reversed(checkpoints):
        await _serve(running, target)
        done = await asyncio.gather(*(client.generate(MODEL, prompt, _SAMPLING) for prompt in _prompts()))
        found[target.version] = [one.token_ids for one in done]
    return found


def _prompts() -> list[list[int]]:
    return [prompt_of(number, PROMPT_TOKENS) for number in range(PROMPTS)]


async def _ask_forever(client: EngineClient, load: Load, first: int) -> None:
    number = first
    while True:
        try:
            load.note(number, await client.generate(MODEL, load.prompts[number], _SAMPLING))
        except EngineError as error:
            load.requests += 1
            load.failures.append(f"{type(error).__name__}: {error}")
        number = (number + CONCURRENCY) % PROMPTS


async def _ended(tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Raises what one of them raised."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
