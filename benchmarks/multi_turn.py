"""Sampled tokens per second of episodes with several turns: by the platform, and by its engine driven raw.

The platform plays the incident tasks, whose tools answer at once: environments in processes of their own,
tool calls, bodies that are stored. Then the same engine is asked for the same turns by a client alone: as
many prompt tokens, as many sampled ones, as many episodes at once. Both in turns, in one run.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from examples.incident.tasks import train

from benchmarks.figures import Figure, Limit, against, number
from benchmarks.options import Options
from benchmarks.stacks import MODEL, Bench, BenchmarkFailed, bench, evaluation
from engine_client import EngineClient, SamplingParams
from upcycle import Taskset
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST
from upcycle.api.registry.v1.registry_pb2 import ENGINE_STATE_READY
from upcycle.api.registry.v1.service_pb2 import ListEnginesRequest
from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.api.trajectory.v1.service_pb2 import (
    GetTrajectoryRequest,
    ListTrajectoriesRequest,
    TrajectoryFilter,
)
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody, TrajectorySummary

CONCURRENCIES: Final = (4, 16, 48)
TARGET_RATIO: Final = 0.9
_EPISODES: Final = (192, 12)
_REPEATS: Final = 3
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RawTurn:
    """new_prompt: ids that came between the turn before and this one; num_sampled: what it sampled."""

    new_prompt: tuple[int, ...]
    num_sampled: int


Episode = tuple[RawTurn, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """A run of the platform. playing_s: from the begin of its first episode to the end of the last one;
    run_s: from SubmitRun to the completed run."""

    episodes: tuple[Episode, ...]
    playing_s: float
    run_s: float

    @property
    def num_tokens(self) -> int:
        """That were sampled."""
        return sum(turn.num_sampled for episode in self.episodes for turn in episode)

    @property
    def num_turns(self) -> int:
        """Of all episodes."""
        return sum(map(len, self.episodes))


async def measure(options: Options) -> list[Figure]:
    """At each concurrency on a platform of its own."""
    return [await _beside_raw(options, concurrency) for concurrency in CONCURRENCIES]


async def _beside_raw(options: Options, concurrency: int) -> Figure:
    """The first run and the first drive warm both, and are thrown away."""
    count = options.sized(*_EPISODES)
    tasks = Taskset(f"bench-turns-{count}", train.tasks[:count], "train")
    played, raw_s = list[Played](), list[float]()
    async with bench(model=MODEL, extra_env={"ROLLOUT_SAMPLER_EVAL_SLOTS": str(concurrency)}) as running:
        await running.register(tasks)
        async with EngineClient(await _engine_url(running)) as client:
            for _ in range(options.repeats(_REPEATS) + 1):
                played.append(await _played(running, tasks))
                raw_s.append(await drive_raw(client, played[-1].episodes, concurrency))
    return figure_of(concurrency, played[1:], raw_s[1:])


def figure_of(concurrency: int, played: Sequence[Played], raw_s: Sequence[float]) -> Figure:
    """raw_s: seconds of the same turns without the platform, run by run."""
    ours = tuple(one.num_tokens / one.playing_s for one in played)
    raw = [one.num_tokens / seconds for one, seconds in zip(played, raw_s, strict=True)]
    whole = statistics.median(one.num_tokens / one.run_s for one in played)
    episodes = sum(len(one.episodes) for one in played)
    turns, tokens = sum(one.num_turns for one in played), sum(one.num_tokens for one in played)
    note = (
        f"{number(turns / episodes)} turns an episode, {number(tokens / turns)} tokens a turn; "
        f"from SubmitRun to the completed run {number(whole)} tokens/s"
    )
    return Figure(
        f"incident episodes with tools that cost nothing, {concurrency} at once",
        "tokens/s",
        ours,
        against("its engine driven raw", ours, raw, "tokens/s"),
        Limit(TARGET_RATIO, "×", at_most=False, of_ratio=True),
        note,
    )


async def _played(running: Bench, tasks: Taskset) -> Played:
    began = time.perf_counter()
    run = await running.complete(evaluation(tasks.name))
    run_s = time.perf_counter() - began
    return played_of(await _bodies(running, run, len(tasks)), run_s)


def played_of(bodies: Sequence[TrajectoryBody], run_s: float) -> Played:
    """The turns of a run's bodies, in the order in which episodes began. Raises BenchmarkFailed for one whose
    tokens are no single sequence."""
    ordered = sorted(bodies, key=lambda body: body.started_at.ToMicroseconds())
    began = ordered[0].started_at.ToMicroseconds()
    ended = max(body.ended_at.ToMicroseconds() for body in bodies)
    return Played(tuple(map(_turns_of, ordered)), (ended - began) / 1e6, run_s)


def _turns_of(body: TrajectoryBody) -> Episode:
    if any(turn.restarts_context or turn.num_inserted for turn in body.turns):
        raise BenchmarkFailed(f"{body.episode.episode_id} is no single sequence of prompts and samples")
    return tuple(RawTurn(tuple(turn.new_prompt_ids), len(turn.sampled_ids)) for turn in body.turns)


async def drive_raw(client: EngineClient, episodes: Sequence[Episode], concurrency: int) -> float:
    """Seconds for the same turns: each prompt goes on from what the engine sampled here, so that it finds
    computed prefixes as it does for the sampler."""
    waiting = iter(episodes)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as driving:
        for _ in range(concurrency):
            driving.create_task(_drive(client, waiting))
    return time.perf_counter() - began


async def _drive(client: EngineClient, waiting: Iterator[Episode]) -> None:
    """One episode after the other. Raises BenchmarkFailed where the engine samples another number."""
    for episode in waiting:
        context = list[int]()
        for turn in episode:
            context += turn.new_prompt
            sampling = SamplingParams(max_tokens=turn.num_sampled, temperature=1.0, ignore_eos=True)
            sampled = (await client.generate(MODEL, context, sampling)).token_ids
            if len(sampled) != turn.num_sampled:
                raise BenchmarkFailed(f"{len(sampled)} tokens came back, expected {turn.num_sampled}")
            context += sampled


async def _bodies(running: Bench, run: Run, count: int) -> list[TrajectoryBody]:
    """Of all its episodes, once the store has them."""
    store = running.platform.trajectories
    found = []
    for one in await _summaries(running, run, count):
        request = GetTrajectoryRequest(trajectory_id=one.episode.trajectory_id)
        found.append((await store.GetTrajectory(request, timeout=30)).body)
    return found


async def _summaries(running: Bench, run: Run, count: int) -> Sequence[TrajectorySummary]:
    request = ListTrajectoriesRequest(filter=TrajectoryFilter(run_id=run.run_id), page_size=1000)
    give_up_at = time.monotonic() + _WAIT_S
    while True:
        listed = await running.platform.trajectories.ListTrajectories(request, timeout=30)
        if len(listed.trajectories) == count:
            return listed.trajectories
        if time.monotonic() > give_up_at:
            stored = len(listed.trajectories)
            raise BenchmarkFailed(f"{stored} of {count} episodes of {run.run_id} are stored")
        await asyncio.sleep(0.1)


async def _engine_url(running: Bench) -> str:
    """Of the engine that the samplers ask."""
    request = ListEnginesRequest(model=MODEL, channel=CHANNEL_LATEST)
    async with asyncio.timeout(_WAIT_S):
        while True:
            for engine in (await running.platform.registry.ListEngines(request, timeout=10)).engines:
                if engine.state == ENGINE_STATE_READY:
                    return engine.base_url
            await asyncio.sleep(0.05)
