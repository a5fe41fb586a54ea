"""Facts per second that become batches: parsed only, assembled in memory, replayed from a real NATS server.

Groups of eight arrive interleaved, as samplers that work side by side produce them; a fifth has no spread
and is settled at once, the rest is cut into batches and settled as trained.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from tests.local_servers import NatsServer

from benchmarks.figures import Figure
from benchmarks.options import Options
from event_bus import BusSettings, EventBus, codec
from event_bus.provision import provision
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.runs.batches import BatchCutter
from grpo_trainer.runs.groups import GroupAssembler
from grpo_trainer.wire import graded_from_wire
from identities import entities, events
from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN, SPLIT_TRAIN, BlobRef, EpisodeIdentity, VersionSpan
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

RUN: Final = "run-benchmark"
MODEL: Final = "benchmark"
GROUP: Final = 8
PROMPTS: Final = 32
OPEN_GROUPS: Final = 64
_PUBLISHING: Final = 64
_READ_S: Final = 120.0


async def measure(options: Options) -> list[Figure]:
    """Three rates over the same facts; the last includes the server, the network stack and the parsing."""
    facts = _facts(options.sized(4096, 256))
    payloads = [codec.encode(fact) for fact in facts]
    repeats = options.repeats(5)
    parsed = tuple(_rate(len(facts), _seconds(lambda: _parse(payloads))) for _ in range(repeats))
    assembled = tuple(_rate(len(facts), _seconds(lambda: _assemble(facts))) for _ in range(repeats))
    async with _stream(options.scratch, facts) as bus:
        replayed = tuple([_rate(len(facts), await _replay(bus, len(facts))) for _ in range(repeats)])
    note = f"{len(facts):,} facts, groups of {GROUP}, {OPEN_GROUPS} open at once, batches of {PROMPTS} groups"
    return [
        Figure("facts parsed, nothing else", "facts/s", parsed),
        Figure("facts assembled and cut into batches, in memory", "facts/s", assembled, note=note),
        Figure("facts replayed from NATS, parsed, assembled and cut", "facts/s", replayed),
    ]


def _rate(count: int, seconds: float) -> float:
    return count / seconds


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _facts(groups: int) -> list[TrajectoryGraded]:
    """All members of all groups, at most OPEN_GROUPS groups open at once, in a seeded order."""
    rng = random.Random(0)
    waiting = iter(range(groups))
    open_groups = {group: list(range(GROUP)) for group in islice(waiting, OPEN_GROUPS)}
    facts = []
    while open_groups:
        group = rng.choice(list(open_groups))
        facts.append(_fact(group, open_groups[group].pop()))
        if not open_groups[group]:
            del open_groups[group]
            following = next(waiting, None)
            if following is not None:
                open_groups[following] = list(range(GROUP))
    return facts


def _fact(group: int, member: int) -> TrajectoryGraded:
    group_id = entities.group_id(RUN, group)
    episode_id = entities.episode_id(group_id, member, 0)
    reward = 1.0 if group % 5 == 0 else float(member % 2)
    return TrajectoryGraded(
        episode=EpisodeIdentity(
            tenant="default",
            trajectory_id=entities.trajectory_id(episode_id),
            episode_id=episode_id,
            run_id=RUN,
            group_id=group_id,
            member=member,
            group_size=GROUP,
            model=MODEL,
            purpose=PURPOSE_TRAIN,
            split=SPLIT_TRAIN,
            task_slug=f"task-{group}",
            task_digest=f"{group:064x}",
        ),
        body=BlobRef(key=f"trajectory/{RUN}/{episode_id}", sha256=f"{member:064x}", size_bytes=4096),
        sampled_by=VersionSpan(oldest=group // PROMPTS, newest=group // PROMPTS),
        reward=reward,
        success=reward > 0,
    )


def _parse(payloads: Sequence[bytes]) -> None:
    for payload in payloads:
        codec.decode(TrajectoryGraded, payload, {})


class _Assembly:
    """What a session does with facts, without bodies and without a model."""

    def __init__(self) -> None:
        spec = TrainingSpec(RUN, MODEL, GROUP, prompts_per_step=PROMPTS, max_staleness=4)
        self._settled = SettledGroups(RUN)
        self._assembler = GroupAssembler(spec, self._settled)
        self._cutter = BatchCutter(spec)
        self.version = 0

    def take(self, fact: GradedTrajectory) -> None:
        """One fact; a batch as soon as there is one."""
        completion = self._assembler.add(fact)
        if isinstance(completion, Settlement):
            self._assembler.settle(completion.group_id)
        elif isinstance(completion, CompleteGroup):
            self._cutter.add(completion)
            self._cut()

    def _cut(self) -> None:
        if self._cutter.num_ready < PROMPTS:
            return
        cut = self._cutter.cut(self.version)
        for group_id in [group.group_id for group in cut.groups] + [one.group_id for one in cut.stale]:
            self._cutter.remove(group_id)
            self._assembler.settle(group_id)
        self.version += 1


def _assemble(facts: Sequence[TrajectoryGraded]) -> None:
    assembly = _Assembly()
    for sequence, fact in enumerate(facts, start=1):
        assembly.take(graded_from_wire(fact, sequence, {}))
    assert assembly.version > 0


@asynccontextmanager
async def _stream(folder: Path, facts: Sequence[TrajectoryGraded]) -> AsyncIterator[EventBus]:
    """A server of its own that holds the facts."""
    with NatsServer(folder / "nats") as server:
        await provision(server.url)
        bus = EventBus(BusSettings(url=server.url), client_name="assembler-benchmark")
        await bus.start()
        slots = asyncio.Semaphore(_PUBLISHING)

        async def publish(fact: TrajectoryGraded) -> None:
            async with slots:
                await bus.publish(fact, model=MODEL, event_id=events.episode_outcome(fact.episode.episode_id))

        try:
            await asyncio.gather(*(publish(fact) for fact in facts))
            yield bus
        finally:
            await bus.stop()


async def _replay(bus: EventBus, count: int) -> float:
    """Seconds from the first request to the last batch."""
    assembly, began, seen = _Assembly(), time.perf_counter(), 0
    async with asyncio.timeout(_READ_S):
        async for delivery in bus.replay([TrajectoryGraded], after_sequence=0):
            assembly.take(graded_from_wire(delivery.message, delivery.sequence, delivery.headers))
            seen += 1
            if seen == count:
                break
    assert assembly.version > 0
    return time.perf_counter() - began
