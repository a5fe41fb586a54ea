"""Many histories, over several processes: chunks of seeds, whose results can be kept in a file."""

import atexit
import hashlib
import json
import logging
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final

from tests.simulation.history import Simulation, Verdict
from tests.simulation.plans import plan_of

_IN_MEMORY: Final = Path("/dev/shm")
_SHOWN: Final = 20
_CHUNK: Final = 20
_KEPT_CHUNK: Final = 1000


@dataclass(slots=True)
class Tally:
    """What became of some histories. ends: how often each; broken and traces: by seed."""

    first: int = 0
    histories: int = 0
    cpu_s: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    broken: dict[str, str] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> None:
        """Add one history."""
        self.histories += 1
        self.cpu_s += verdict.cpu_s
        self.ends[verdict.broken.partition(":")[0] or verdict.run_ended] += 1
        if verdict.broken:
            self.broken[str(verdict.seed)] = verdict.broken
            print(f"make simulate SEED={verdict.seed}   # {verdict.broken}", file=sys.stderr, flush=True)

    def add(self, other: "Tally") -> None:
        """Add a chunk."""
        self.histories += other.histories
        self.cpu_s += other.cpu_s
        self.ends.update(other.ends)
        self.broken |= other.broken
        self.traces |= other.traces

    def as_json(self) -> str:
        """One line."""
        numbers = {"histories": self.histories, "cpu_s": round(self.cpu_s, 1)}
        rate = {"per_s": round(self.histories / max(self.cpu_s, 0.001), 1)}
        shown = dict(list(self.broken.items())[:_SHOWN])
        traces = {"traces": self.traces} if self.traces else {}
        return json.dumps({**numbers, **rate, "ends": dict(self.ends), "broken": shown, **traces})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. first, last: seeds; cpu_s: end after so much processor time, 0: do not; keep: file
    that gets a line per chunk, whose chunks are not played again."""

    first: int
    last: int
    jobs: int = 1
    cpu_s: float = 0.0
    keep_going: bool = False
    twice: bool = False
    keep: Path | None = None


def play(wanted: Wanted) -> Tally:
    """Play them."""
    size = _KEPT_CHUNK if wanted.keep else _CHUNK
    total, known = Tally(wanted.first), _kept(wanted.keep)
    for kept in known.values():
        total.add(kept)
    chunks = [at for at in range(wanted.first, wanted.last + 1, size) if at not in known]
    with _workers(wanted.jobs) as work:
        for done in work(partial(_chunk, wanted, size, total.cpu_s), chunks):
            total.add(done)
            if wanted.keep:
                with wanted.keep.open("a") as file:
                    file.write(json.dumps({name: getattr(done, name) for name in Tally.__slots__}) + "\n")
            if (done.broken and not wanted.keep_going) or 0 < wanted.cpu_s <= total.cpu_s:
                break
    return total


@contextmanager
def _workers(jobs: int) -> Iterator["type[map[Tally]]"]:
    """A `map`, in this process or over several."""
    if jobs == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap_unordered  # type: ignore[misc]


def _kept(file: Path | None) -> dict[int, Tally]:
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {line["first"]: Tally(**{**line, "ends": Counter(line["ends"])}) for line in lines}


@cache
def simulation() -> Simulation:
    """The one of this process; its folder goes with the process."""
    folder = tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)
    atexit.register(folder.cleanup)
    return Simulation(Path(folder.name))


def _chunk(wanted: Wanted, size: int, spent_s: float, first: int) -> Tally:
    logging.getLogger().setLevel(logging.INFO if wanted.twice else logging.ERROR)
    tally = Tally(first)
    for seed in range(first, min(first + size, wanted.last + 1)):
        verdict = simulation().play(plan_of(seed), traced=wanted.twice)
        if wanted.twice:
            tally.traces[str(seed)] = hashlib.sha256("\n".join(verdict.trace).encode()).hexdigest()[:16]
            again = simulation().play(plan_of(seed), traced=True)
            if again.trace != verdict.trace:
                verdict.broken = verdict.broken or "REPLAY: the same seed gave another history"
        tally.count(verdict)
        if (tally.broken and not wanted.keep_going) or 0 < wanted.cpu_s < spent_s + tally.cpu_s:
            break
    return tally
