"""The cell of episodes that are played here: what an environment, its tools and their programs may touch.

Read: the system's programs and libraries, the interpreter, the environment's source. Written: a folder of the
episode's own, which is also its working directory, HOME and TMPDIR. A kernel without Landlock holds nothing
back, and the folder is the episode's all the same.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from upcycle.environment import landlock
from upcycle.environment.cell_paths import DEVICES, SYSTEM, entries, granted, interpreter, programs

WAY_OUT: Final = (
    "it plays in a cell, which holds its source and the system alone: declare what it reads as its data, or "
    "play it without one (--no-cell)"
)
_SHARED: Final = ("/dev/shm", "/dev/ptmx", "/dev/pts")  # noqa: S108 - not a temporary file


class EpisodeCell:
    """`enter` before the environment is loaded, then `prepare`, then `narrow` in each episode's process."""

    def __init__(self, folder: Path, source: Path) -> None:
        """folder: below which each episode has its own. source: the folder of the environment's files."""
        self._folder = folder
        self._rules = landlock.Ruleset()
        self._version = landlock.version()
        readable = (str(source), *programs(), *SYSTEM, *interpreter())
        hidden = frozenset(map(os.path.realpath, entries(os.path.expanduser("~"), ".")))
        self._granted = granted(
            (
                *((path, landlock.WRITE) for path in (*_SHARED, *DEVICES)),
                *((path, landlock.READ) for path in readable),
            ),
            hidden,
        )

    def enter(self) -> None:
        """Confine this process. Raises OSError."""
        _move_to(str(self._folder))
        if self._version:
            rules = self._allowed()
            rules.allow(self._folder, landlock.WRITE)
            rules.enter(self._version)
            rules.close()

    def prepare(self) -> None:
        """Open what every episode may touch."""
        if self._version:
            self._rules = self._allowed()

    def narrow(self, folder: str) -> None:
        """Leave this process the folder of one episode alone. Raises OSError."""
        _move_to(folder)
        if self._version:
            self._rules.enter(self._version, more=[(folder, landlock.WRITE)])

    def _allowed(self) -> landlock.Ruleset:
        rules = landlock.Ruleset()
        for path, access in self._granted.items():
            rules.allow(path, access)
        return rules


def _move_to(folder: str) -> None:
    os.chdir(folder)
    os.environ.update(TMPDIR=folder, HOME=folder)
    tempfile.tempdir = folder
