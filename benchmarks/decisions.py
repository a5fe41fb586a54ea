"""What the stream of decisions costs NATS: memory, size on disk and the time of a restart, with a subject
for each of three million episodes.

Filled without an fsync per message, which changes none of these figures. The server runs alone: no copies
are made, so the disk holds the decisions only; EVENTS holds each once more.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import nats
from nats.aio.client import Client
from nats.js.errors import APIError
from tests.local_servers import NatsServer

from benchmarks.figures import Figure
from benchmarks.options import Options
from event_bus import codec
from event_bus.provision import stream_config
from event_bus.topology import DECISIONS, STREAMS, UPCYCLE
from identities import entities, events, objects, subjects
from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN, SPLIT_TRAIN, BlobRef, EpisodeIdentity, VersionSpan
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

MODEL: Final = "benchmark"
_PER_RUN: Final = 10_000
_GROUP: Final = 8
_CHUNK: Final = 2_000
_READY_S: Final = 600.0
_MIB: Final = 1 << 20
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class FillingServer(NatsServer):
    """Does not sync each message: filling it would take the day."""

    ready_timeout_s = _READY_S

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        argv, environment = super()._command()
        config = Path(argv[-1])
        config.write_text(config.read_text().replace("sync_interval: always", 'sync_interval: "2m"'))
        return argv, environment


async def measure(options: Options) -> list[Figure]:
    """Memory and restarts of a server with so many decisions, and how long one more takes then."""
    count = options.sized(3_000_000, 30_000)
    server = FillingServer(options.scratch / "decisions")
    await asyncio.to_thread(server.start)
    try:
        empty = resident_mib(server.pid)
        await _fill(server.url, count)
        full = resident_mib(server.pid)
        size = await _stored_bytes(server.url)
        stopped = await _restart_s(server, kill=False)
        after = resident_mib(server.pid)
        killed = await _restart_s(server, kill=True)
        winning = await _winning_ms(server.url, range(count, count + 300))
        losing = await _losing_ms(server.url, 300, count)
    finally:
        server.kill()
    note = f"{count:,} decisions, one subject each, {size / count:,.0f} bytes each"
    return [
        Figure("memory of NATS, filled", "MiB", (full,), note=f"{note}; empty {empty:.0f} MiB"),
        Figure("memory of NATS, restarted", "MiB", (after,)),
        Figure("decisions on disk", "MiB", (size / _MIB,)),
        Figure("restart after SIGTERM, until the stream answers", "s", (stopped,)),
        Figure("restart after kill -9, until the stream answers", "s", (killed,)),
        Figure("one more decision", "ms", tuple(winning), note="without an fsync"),
        Figure("a decision that loses and reads what stands", "ms", tuple(losing)),
    ]


def episode_of(number: int) -> EpisodeIdentity:
    """The n-th episode, of runs of 10,000 in groups of eight."""
    run_id = f"run-{number // _PER_RUN:012x}"
    group = entities.group_id(run_id, number % _PER_RUN // _GROUP)
    episode = entities.episode_id(group, number % _GROUP, 0)
    return EpisodeIdentity(
        episode_id=episode,
        trajectory_id=entities.trajectory_id(episode),
        run_id=run_id,
        group_id=group,
        member=number % _GROUP,
        group_size=_GROUP,
        model=MODEL,
        purpose=PURPOSE_TRAIN,
        split=SPLIT_TRAIN,
        task_slug="incident-disk-full",
        task_digest=_DIGEST,
        family="incident",
        tenant="default",
    )


def _graded(number: int) -> TrajectoryGraded:
    episode = episode_of(number)
    key = objects.trajectory_body(episode.run_id, episode.episode_id)
    return TrajectoryGraded(
        episode=episode,
        body=BlobRef(key=key, sha256=_DIGEST, size_bytes=20_000),
        sampled_by=VersionSpan(oldest=12, newest=12),
        reward=0.5,
        num_turns=4,
        num_sampled_tokens=512,
    )


async def _fill(url: str, count: int) -> None:
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream(timeout=60)
        (spec,) = (one for one in STREAMS if one.name == DECISIONS)
        await jetstream.add_stream(stream_config(spec), max_bytes=-1)
        for start in range(0, count, _CHUNK):
            await _chunk(client, range(start, min(count, start + _CHUNK)))
        held = (await jetstream.stream_info(DECISIONS)).state.messages
        if held != count:
            raise RuntimeError(f"the stream holds {held} decisions of {count}")
    finally:
        await client.close()


async def _chunk(client: Client, numbers: range) -> None:
    """Published at once; the answer to the last one says that all are stored."""
    for number in numbers:
        subject, payload, headers = _message(number)
        if number != numbers[-1]:
            await client.publish(subject, payload, headers=headers)
            continue
        answer = await client.request(subject, payload, headers=headers, timeout=60)
        if "error" in json.loads(answer.data):
            raise RuntimeError(answer.data.decode())


def _message(number: int) -> tuple[str, bytes, dict[str, str]]:
    event = _graded(number)
    event_id = events.episode_outcome(event.episode.episode_id)
    _, subject = UPCYCLE.address(TrajectoryGraded, MODEL, event_id)
    headers = codec.headers_for(TrajectoryGraded, event_id) | {
        codec.EXPECTED_SEQUENCE: "0",
        codec.EXPECTED_SUBJECT: subjects.of_any_author(subject),
    }
    return subject, codec.encode(event), headers


async def _stored_bytes(url: str) -> int:
    client = await nats.connect(url)
    try:
        return (await client.jetstream(timeout=60).stream_info(DECISIONS)).state.bytes
    finally:
        await client.close()


async def _restart_s(server: NatsServer, *, kill: bool) -> float:
    """Seconds from the start of the server until the stream answers."""
    await asyncio.to_thread(server.kill if kill else server.stop)
    began = time.perf_counter()
    await asyncio.to_thread(server.start)
    await _stored_bytes(server.url)
    return time.perf_counter() - began


async def _winning_ms(url: str, numbers: range) -> list[float]:
    """Milliseconds of decisions about something new."""
    client = await nats.connect(url)
    found = []
    try:
        jetstream = client.jetstream(timeout=60)
        for subject, payload, headers in map(_message, numbers):
            began = time.perf_counter()
            await jetstream.publish(subject, payload, stream=DECISIONS, headers=headers)
            found.append((time.perf_counter() - began) * 1e3)
    finally:
        await client.close()
    return found


async def _losing_ms(url: str, count: int, among: int) -> list[float]:
    """Milliseconds of decisions that find another standing, and read it."""
    client = await nats.connect(url)
    found = []
    try:
        jetstream = client.jetstream(timeout=60)
        for number in range(0, among, among // count):
            subject, payload, headers = _message(number)
            began = time.perf_counter()
            try:
                await jetstream.publish(subject, payload, stream=DECISIONS, headers=headers)
                raise RuntimeError(f"{subject} was decided twice")
            except APIError:
                await jetstream.get_last_msg(DECISIONS, subjects.of_any_author(subject))
            found.append((time.perf_counter() - began) * 1e3)
    finally:
        await client.close()
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} does not say how much memory it has")
