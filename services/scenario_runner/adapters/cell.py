"""The cell of an environment: what its zygote may touch from before its import on, and an episode of that.

Read: the system's programs and libraries, the interpreter, the environment's source, what the operator adds.
Written: the zygote's own folder, of which an episode has its own part alone. An environment that was sent
here has no network beyond the operator's ports; one that the operator registered from a path has, unless
there are such ports.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from scenario_runner.adapters import seccomp
from upcycle.environment import landlock
from upcycle.environment.cell_paths import DEVICES, SYSTEM, entries, granted, interpreter, programs

Mode = Literal["enforced", "best_effort", "off"]
FOLDER_PREFIX: Final = "upcycle-env-"
"""Begins the name of every zygote's folder."""

_NAMES_PORT: Final = 53
_SHARED: Final = ("/dev/shm", "/dev/ptmx", "/dev/pts")  # noqa: S108 - not a temporary file
"""What multiprocessing and terminals need: of an operator's code alone, because all of a user share it."""


@dataclass(frozen=True, slots=True)
class CellRules:
    """The operator's. files, folders: what environments may read beyond their own, and write too. ports: of
    TCP; None: none for what was sent here, all for what is registered from a path. hidden: what no cell shows
    unless a source or one of files or folders lies in it, such as the platform's data."""

    mode: Mode = "enforced"
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    ports: tuple[int, ...] | None = None
    hidden: tuple[str, ...] = ()

    def refusal(self) -> str:
        """Why an environment that was sent here may not play on this machine; "" where it may."""
        missing = lacking()
        if self.mode != "enforced" or not missing:
            return ""
        return (
            f"this machine's kernel does not hold a deployed environment in its cell: it lacks "
            f"{', '.join(missing)}; use a newer kernel, or a container or machine for the fleet alone and "
            "SCENARIO_RUNNER_CELL=best_effort"
        )

    def refusal_of_secrets(self) -> str:
        """Why MCP servers are given no secrets on this machine; "" where they are."""
        if self.mode != "enforced" or not lacking():
            return ""
        return (
            f"this machine's kernel does not keep the secrets of MCP servers from episodes: it lacks "
            f"{', '.join(lacking())}; use a newer kernel, or SCENARIO_RUNNER_CELL=best_effort where tools "
            "run no code of an agent"
        )

    def plan(self, folder: Path, source: Path, *, is_deployed: bool) -> "CellPlan":
        """Of the cell of one environment. folder: its zygote's own. source: the folder of its files."""
        at_home = entries(os.path.expanduser("~"), ".")
        zygotes = entries(tempfile.gettempdir(), FOLDER_PREFIX)
        ports = () if self.ports is None and is_deployed else self.ports
        return CellPlan(
            folder=str(folder),
            version=0 if self.mode == "off" else landlock.version(),
            readable=(str(source), *self.files, *programs()),
            writable=(*self.folders, *(() if is_deployed else _SHARED)),
            ports=None if self.mode == "off" else ports,
            hidden=tuple(os.path.realpath(path) for path in (*self.hidden, *at_home, *zygotes)),
            has_unix_sockets=self.mode == "off" or not is_deployed,
            hides_memory=self.mode != "off",
        )


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What the fleet tells a zygote, as JSON. version: of Landlock, 0: none. folder: the zygote's own."""

    folder: str
    version: int
    readable: Sequence[str]
    writable: Sequence[str]
    ports: Sequence[int] | None
    hidden: Sequence[str]
    has_unix_sockets: bool
    hides_memory: bool


def lacking() -> list[str]:
    """What this machine cannot hold back."""
    return [*landlock.lacking(), *([] if seccomp.is_available() else ["system calls (x86-64 or arm64)"])]


class Cell:
    """`enter` in the zygote, then `prepare` once its source lies there, then `narrow` in each child."""

    def __init__(self, plan: CellPlan) -> None:
        self._plan = plan
        self._rules = landlock.Ruleset()
        self._granted = granted(
            (
                *((path, landlock.WRITE) for path in (*plan.writable, *DEVICES)),
                *((path, landlock.READ) for path in (*plan.readable, *SYSTEM, *interpreter())),
            ),
            frozenset(plan.hidden),
        )

    @property
    def isolation(self) -> list[str]:
        """What it holds back, for the log."""
        held = landlock.held(self._plan.version, with_ports=self._plan.ports is not None)
        return [f"cell ({', '.join(held)})"] if held else []

    @property
    def hides_memory(self) -> bool:
        """Whether others of its user are kept from reading it."""
        return self._plan.hides_memory

    @property
    def sockets(self) -> seccomp.Sockets:
        """What it may open of them. Without a port there is no use for one."""
        if self._plan.ports is None:
            return seccomp.ANY_SOCKET
        return seccomp.Sockets(
            inet=bool(self._plan.ports),
            udp=_NAMES_PORT in self._plan.ports,
            unix=self._plan.has_unix_sockets,
            is_by_port=True,
        )

    def enter(self) -> None:
        """Confine this process. Raises OSError."""
        if self._plan.version:
            rules = self._allowed()
            rules.allow(self._plan.folder, landlock.WRITE)
            rules.enter(self._plan.version, ports=self._plan.ports)
            rules.close()

    def prepare(self) -> None:
        """Open what every episode may touch."""
        if self._plan.version:
            self._rules = self._allowed()

    def narrow(self, folder: str) -> None:
        """Leave of the zygote's folder that of one episode alone. Raises OSError."""
        if self._plan.version:
            self._rules.enter(self._plan.version, more=[(folder, landlock.WRITE)])

    def _allowed(self) -> landlock.Ruleset:
        rules = landlock.Ruleset()
        for path, access in self._granted.items():
            rules.allow(path, access)
        return rules
