"""Faults of one process's machine: a disk that is full, a clock that jumps.

The disk is a small tmpfs on which the process has its folders (root mounts it). The clock is libfaketime's,
preloaded into the last replica of each service: wall clock only, as a step of NTP is.
"""

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_DISK_BYTES: Final = 256 * 1024 * 1024
_FILLER: Final = ".filler"
_JUMP_S: Final = 3600
_SLEEP: Final = "import select, time\ntime.sleep = lambda span: select.select([], [], [], span) and None\n"
"""Under libfaketime 0.9.10 clock_nanosleep, which time.sleep calls since Python 3.11, answers EINVAL."""
_LIBRARIES: Final = ("lib/*/faketime/libfaketimeMT.so.1", "lib/faketime/libfaketimeMT.so.1")
WITH_DISK: Final = ("grpo_trainer", "policy_engine_latest", "policy_engine_head")
"""Services that write files of any size."""


class Disks:
    """Small file systems, one for each process that has `mount`."""

    def __init__(self) -> None:
        self._mounted: list[Path] = []

    @staticmethod
    def why_not() -> str | None:
        """Why there can be none here."""
        return None if os.geteuid() == 0 else "only root can mount a small file system"

    def mount(self, folder: Path) -> None:
        """Make `folder` a file system of its own."""
        folder.mkdir(parents=True)
        size = f"size={_DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "upcycle-chaos", str(folder)], check=True)
        self._mounted.append(folder)

    def unmount(self) -> None:
        """Take all of them away, with what is on them."""
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
        self._mounted.clear()


@dataclass(slots=True)
class FullDisk:
    """Not a byte more fits on the disk of one process."""

    folder: Path

    async def inject(self) -> None:
        with (self.folder / _FILLER).open("ab", buffering=0) as filler:
            size = 1024 * 1024
            while size:
                try:
                    filler.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    async def heal(self) -> None:
        (self.folder / _FILLER).unlink(missing_ok=True)


@dataclass(slots=True)
class Clocks:
    """Files that say by how many seconds the clock of a process is off; `folder` is made when needed."""

    folder: Path
    library: Path | None = field(default_factory=lambda: _library())

    def why_not(self) -> str | None:
        """Why no clock can jump here."""
        return None if self.library is not None else "libfaketime is not installed (Debian: libfaketime)"

    def environment(self, process: str) -> Mapping[str, str]:
        """Of a process whose clock may jump."""
        if self.library is None:
            return {}
        self.set(process, 0)
        (self.folder / "sitecustomize.py").write_text(_SLEEP)
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file(process)),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH", "")])),
        }

    def set(self, process: str, offset_s: int) -> None:
        """From within a second on, the clock is off by so much."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self._file(process).with_suffix(".partial")
        partial.write_text(f"{offset_s:+d}s\n")
        partial.replace(self._file(process))

    def _file(self, process: str) -> Path:
        return self.folder / process


@dataclass(slots=True)
class JumpedClock:
    """The wall clock of one process is up to an hour ahead or behind, then right again."""

    clocks: Clocks
    process: str
    draw: float

    async def inject(self) -> None:
        self.clocks.set(self.process, int(_JUMP_S * (2 * self.draw - 1)))

    async def heal(self) -> None:
        self.clocks.set(self.process, 0)


def _library(roots: Sequence[Path] = (Path("/usr"), Path("/usr/local"))) -> Path | None:
    found = (path for root in roots for pattern in _LIBRARIES for path in sorted(root.glob(pattern)))
    return next(found, None)
