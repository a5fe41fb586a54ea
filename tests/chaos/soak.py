"""`make soak`: train without faults, and see that nothing grows."""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from tests.chaos.__main__ import add_arrangement, platform_settings, refusal, speaker
from tests.chaos.procfs import family, memory_bytes, open_files
from tests.chaos.replicated import Arrangement, ReplicatedStack, service_of
from tests.chaos.runs import Runs
from tests.chaos.slopes import DAY_S, Growth, curve, growth
from tests.platform_recipes import register_incident, small_training
from tests.postgres import PostgresServer

from service_kit.ports import LOOPBACK
from upcycle.platform import Addresses, Platform

_LOOK_S: Final = 5.0
_ANSWER_S: Final = 10.0
LEAST: Final = {"memory_bytes": 2e6, "open_files": 3.0, "disk_bytes": 2e6, "livez_s": 0.05}
"""The least that counts. What is not named here is reported alone: a family has episodes that come and go."""
KEEPS_EPISODES: Final = ("nats", "s3")
"""What keeps each episode: NATS its subjects, the object store its index. They grow with the episodes, and
retention bounds them, so it is the memory per episode that is held against a limit."""
MAX_KEPT_BYTES: Final = 8192
FEWEST_EPISODES: Final = 2000
Series = Mapping[tuple[str, str], list[tuple[float, float]]]
"""(process, what) to (seconds, value)."""


async def measure(stack: ReplicatedStack, series: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    """One point of everything, for every process."""
    at = time.monotonic()
    for process in stack.processes:
        members = family(process.pid)
        series[process.name, "memory_bytes"].append((at, float(memory_bytes(process.pid))))
        series[process.name, "family_bytes"].append((at, float(sum(map(memory_bytes, members)))))
        series[process.name, "open_files"].append((at, float(open_files(process.pid))))
        if process.http_port is not None and process.name in stack.homes:
            series[process.name, "livez_s"].append((at, await answers_in_s(process.http_port)))
            folder = stack.homes[process.name]
            series[process.name, "disk_bytes"].append((at, float(await asyncio.to_thread(size_of, folder))))


async def answers_in_s(port: int) -> float:
    """How long a GET of /livez takes."""
    began = time.monotonic()
    async with asyncio.timeout(_ANSWER_S):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()
    return time.monotonic() - began


def size_of(folder: Path) -> int:
    """Bytes of all files under it; files and folders may go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over a folder that was removed meanwhile; rglob raises
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def report(series: Series, settled: int, stored: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """The line that `make soak` prints. stored: bytes before and after, of what keeps what was sampled."""
    slopes: dict[str, dict[str, Any]] = defaultdict(dict)
    grows, kept = [], {}
    for (process, what), points in sorted(series.items()):
        if (found := growth(points)) is None:
            continue
        figures = {key: float(f"{getattr(found, key):.4g}") for key in found.__slots__}
        means = curve(points)
        tenths = " ".join(f"{value:.4g}" for value in means)
        slopes[process][what] = {**figures, "tenths": tenths}
        if what == "memory_bytes" and service_of(process) in KEEPS_EPISODES:
            # From the middle of the second tenth to that of the last one.
            kept[process] = round((means[-1] - means[1]) / max(0.8 * settled, 1))
        elif is_growth(what, found, points[-1][0] - points[0][0]):
            grows.append(
                f"{process} {what}: {found.level:.4g}, {found.per_day:+.4g} a day; by tenths: {tenths}"
            )
    grows += [
        f"{process} memory_bytes: {size} of each episode, limit {MAX_KEPT_BYTES}"
        for process, size in kept.items()
        if size > MAX_KEPT_BYTES and settled >= FEWEST_EPISODES
    ]
    grown = {name: after - before for name, (before, after) in stored.items()}
    per_episode = {name: round(size / max(settled, 1)) for name, size in grown.items()}
    return {
        "settled": settled,
        "grows": grows,
        "stored_bytes_per_episode": per_episode,
        "kept_memory_per_episode": kept,
        "slopes": slopes,
    }


def is_growth(what: str, found: Growth, took_s: float) -> bool:
    """Whether it doubles within a day and came to more than such a measure moves by itself."""
    return found.doubles_in_a_day and found.per_day / DAY_S * took_s > LEAST.get(what, math.inf)


async def soak(args: argparse.Namespace, folder: Path, postgres: PostgresServer | None) -> dict[str, Any]:
    """Train for so many minutes on a platform of its own."""
    say = speaker()
    database = None if postgres is None else lambda _service: postgres.database()
    stores = {name: folder / name for name in ("nats", "s3", "sql")}
    async with ReplicatedStack(
        platform_settings(folder, say), Arrangement(args.replicas, args.bus, database)
    ) as stack:
        await register_incident(stack)
        where = Addresses(stack.peers, "soak", operator_key_file=stack.operator_key_file)
        async with Platform(where) as platform:
            runs = Runs(platform, small_training(steps=8, seed=1), say)
            training = asyncio.create_task(runs.watch())
            series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
            before = {name: size_of(path) for name, path in stores.items()}
            until = time.monotonic() + args.minutes * 60
            while time.monotonic() < until and not training.done():
                await measure(stack, series)
                await asyncio.sleep(_LOOK_S)
            if training.done():
                training.result()
            training.cancel()
            stored = {name: (before[name], size_of(path)) for name, path in stores.items()}
        line = report(series, runs.settled, stored)
    return {**line, "hung": len(runs.hung) + len(runs.paused), "runs": dict(runs.finished)}


def verdict(line: Mapping[str, Any]) -> bool:
    """Whether nothing grows, no run hung or paused itself, none ended but completed, and episodes settled."""
    went_well = line["settled"] > 0 and set(line["runs"]) <= {"completed"}
    return went_well and not line["grows"] and not line["hung"]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when nothing grows to its double within a day, and what was trained went well; 2:
    refused."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    add_arrangement(parser)
    args = parser.parse_args(argv)
    if (why_not := refusal(args)) is not None:
        print(f"make soak: {why_not}", file=sys.stderr)
        return 2
    with ExitStack() as resources:
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="upcycle-soak-"))
        postgres = resources.enter_context(PostgresServer()) if args.backend == "postgres" else None
        line = asyncio.run(soak(args, Path(folder), postgres))
    print(json.dumps(line))
    return 0 if verdict(line) else 1


if __name__ == "__main__":
    sys.exit(main())
