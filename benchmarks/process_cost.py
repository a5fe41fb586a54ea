"""What a program costs with all that it starts: wall clock, processor time, memory."""

import asyncio
import os
import resource
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.programs import printed_by

_SAMPLE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """wall_s, cpu_s: seconds, the second of all its processes. peak_mib: the most memory that they had
    together, a page that several share counted once among them (PSS), looked at five times a second."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    printed: str


async def cost_of(argv: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float) -> Cost:
    """Run a program that must succeed; nothing else of ours may end meanwhile. Raises BenchmarkFailed."""
    pipe = asyncio.subprocess.PIPE
    before, began = _cpu_s(), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env={**os.environ, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )
    peak = _Peak()
    watching = asyncio.create_task(peak.watch(process.pid))
    try:
        printed = await printed_by(process, argv, limit_s)
    finally:
        wall_s = time.perf_counter() - began
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return Cost(wall_s, _cpu_s() - before, peak.mib, printed)


@dataclass(slots=True)
class _Peak:
    mib: float = 0.0

    async def watch(self, pid: int) -> None:
        while True:
            self.mib = max(self.mib, await asyncio.to_thread(tree_mib, pid))
            await asyncio.sleep(_SAMPLE_S)


def _cpu_s() -> float:
    """Of all that this process waited for, and of what those waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tree_mib(pid: int) -> float:
    """Memory of a process and its descendants now, MiB of PSS."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    tree, found = [pid], 0.0
    for one in tree:
        tree += [child for child, parent in parents.items() if parent == one]
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            found += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return found
