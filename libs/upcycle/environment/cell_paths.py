"""What a cell shows of a machine: the system, its programs, the interpreter, and nothing that is hidden."""

import os
import sys
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Final

from upcycle.environment import landlock

SYSTEM: Final = (
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
DEVICES: Final = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))


def granted(asked: Iterable[tuple[str, int]], hidden: Set[str]) -> dict[str, int]:
    """What to allow so that all is granted that is asked for, without what is hidden: no path twice, and none
    whose folder is allowed the same."""
    found: dict[str, int] = {}
    shown = [one for path, access in asked for one in _shown(os.path.realpath(path), access, hidden)]
    for path, access in sorted(shown, key=lambda one: len(one[0])):
        above = (str(folder) for folder in (path, *Path(path).parents))
        if not any(found.get(folder, 0) & access == access for folder in above):
            found[path] = found.get(path, 0) | access
    return found


def _shown(path: str, access: int, hidden: Set[str]) -> Iterator[tuple[str, int]]:
    """A path with what is granted there: of a folder with something hidden below it, whatever else is in it.
    Of what is hidden the names alone are seen."""
    below = f"{path.rstrip('/')}/"
    if not any(one.startswith(below) for one in hidden):
        yield path, access
        return
    yield path, landlock.LIST
    for inside in entries(path):
        if inside not in hidden:
            yield from _shown(inside, access, hidden)


def interpreter() -> list[str]:
    """Where it and installed packages lie; a working directory of / would be everything."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable))
    return [*prefixes, *(path for path in sys.path if path not in ("", "/"))]


def programs() -> list[str]:
    """The folders of PATH; of one such as ~/.nvm/versions/node/v22/bin what belongs to its programs too."""
    home = Path(os.path.expanduser("~"))
    found: list[str] = []
    shared = {home, home / ".local", home / ".cargo", Path("/")}
    for folder in map(Path, os.environ.get("PATH", "").split(os.pathsep)):
        is_of_one = folder.is_relative_to(home) and folder.parent not in shared
        found.append(str(folder.parent if is_of_one else folder))
    return [path for path in found if os.path.isabs(path)]


def entries(folder: str, beginning: str = "") -> list[str]:
    """What begins so in a folder, without links; nothing where it cannot be read."""
    try:
        found = [entry for entry in os.scandir(folder) if entry.name.startswith(beginning)]
        return [entry.path for entry in found if not entry.is_symlink()]
    except OSError:
        return []
