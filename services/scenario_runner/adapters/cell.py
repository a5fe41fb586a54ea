"""The cell of an environment: what its zygote may touch from before its import on, and an episode of that.

Read: the system's programs and libraries, the interpreter, the environment's source, what the operator adds.
Written: the zygote's own folder, of which an episode has its own part alone. An environment that was sent
here has no network beyond the operator's ports; one that the operator registered from a path has, unless
there are such ports.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from scenario_runner.adapters import seccomp
from upcycle.environment import landlock

Mode = Literal["enforced", "best_effort", "off"]
FOLDER_PREFIX: Final = "upcycle-env-"
"""Begins the name of every zygote's folder."""

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/snap", "/nix/store", "/proc"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *(
        f"/etc/{name}"
        for name in (
            *("alternatives", "bash.bashrc", "ca-certificates", "crypto-policies", "environment", "fonts"),
            *("gai.conf", "group", "host.conf", "hostname", "hosts", "inputrc", "java", "ld.so.cache"),
            *("ld.so.conf", "ld.so.conf.d", "localtime", "locale.alias", "locale.conf", "machine-id"),
            *("magic", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust"),
            *(
                "pki/tls/certs",
                "pki/tls/cert.pem",
                "profile",
                "profile.d",
                "protocols",
                "resolv.conf",
                "services",
            ),
            *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "terminfo", "timezone", "vim", "xattr.conf"),
        )
    ),
)
_DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
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

    def plan(self, folder: Path, source: Path, *, is_deployed: bool) -> "CellPlan":
        """Of the cell of one environment. folder: its zygote's own. source: the folder of its files."""
        at_home = _entries(os.path.expanduser("~"), ".")
        zygotes = _entries(tempfile.gettempdir(), FOLDER_PREFIX)
        ports = () if self.ports is None and is_deployed else self.ports
        return CellPlan(
            folder=str(folder),
            version=0 if self.mode == "off" else landlock.version(),
            readable=(str(source), *self.files, *_programs()),
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
        self._granted = _granted(
            (
                *((path, landlock.WRITE) for path in (*plan.writable, *_DEVICES)),
                *((path, landlock.READ) for path in (*plan.readable, *_SYSTEM, *_interpreter())),
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


def _granted(asked: Iterable[tuple[str, int]], hidden: Set[str]) -> dict[str, int]:
    """What to allow so that all is granted that is asked for, without what is hidden: no path twice, and none
    whose folder is allowed the same."""
    granted: dict[str, int] = {}
    shown = [one for path, access in asked for one in _shown(os.path.realpath(path), access, hidden)]
    for path, access in sorted(shown, key=lambda one: len(one[0])):
        above = (str(folder) for folder in (path, *Path(path).parents))
        if not any(granted.get(folder, 0) & access == access for folder in above):
            granted[path] = granted.get(path, 0) | access
    return granted


def _shown(path: str, access: int, hidden: Set[str]) -> Iterator[tuple[str, int]]:
    """A path with what is granted there: of a folder with something hidden below it, whatever else is in it.
    Of what is hidden the names alone are seen."""
    below = f"{path.rstrip('/')}/"
    if not any(one.startswith(below) for one in hidden):
        yield path, access
        return
    yield path, landlock.LIST
    for inside in _entries(path):
        if inside not in hidden:
            yield from _shown(inside, access, hidden)


def _interpreter() -> list[str]:
    """Where it and installed packages lie; a working directory of / would be everything."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable))
    return [*prefixes, *(path for path in sys.path if path not in ("", "/"))]


def _programs() -> list[str]:
    """The folders of PATH; of one such as ~/.nvm/versions/node/v22/bin what belongs to its programs too."""
    home = Path(os.path.expanduser("~"))
    found: list[str] = []
    shared = {home, home / ".local", home / ".cargo", Path("/")}
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        is_of_one = folder.is_relative_to(home) and folder.parent not in shared
        found.append(str(folder.parent if is_of_one else folder))
    return [path for path in found if os.path.isabs(path)]


def _entries(folder: str, beginning: str = "") -> list[str]:
    """What begins so in a folder, without links; nothing where it cannot be read."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.name.startswith(beginning)]
        return [entry.path for entry in found if not entry.is_symlink()]
    except OSError:
        return []
