"""Free TCP ports."""

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

LOOPBACK = "127.0.0.1"
LAST_PORT: Final = 65_535
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST: Final = 20_000
_AT_LEAST: Final = 10_000
"""At least so many ports are considered, even if that overlaps with the kernel's range."""


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """`count` different ports that are free on an address of this machine. Bind soon: nothing reserves them.

    From below the range that the kernel takes for outgoing connections: there, any client of this machine
    could get the port between now and then. Raises OSError when there are not that many.
    """
    found: dict[int, socket.socket] = {}
    candidates = iter(_shuffled(_FIRST, _first_ephemeral()))
    try:
        while len(found) < count:
            port = next(candidates, None)
            if port is None:
                raise OSError(f"{count} free ports wanted, {len(found)} found on {host} from {_FIRST} on")
            one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                one.bind((host, port))
            except OSError:
                one.close()
            else:
                found[port] = one
        return list(found)
    finally:
        for one in found.values():
            one.close()


def _shuffled(first: int, end: int) -> list[int]:
    """Every port once, in random order, so that two processes that ask at once try different ports."""
    return random.SystemRandom().sample(range(first, end), max(end - first, 0))


def _first_ephemeral() -> int:
    """Where the kernel's ports for outgoing connections begin."""
    try:
        return max(int(_EPHEMERAL.read_text().split()[0]), _FIRST + _AT_LEAST)
    except OSError:  # not Linux's /proc
        return _FIRST + _AT_LEAST


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def pick_ports(wanted: Sequence[int], *, tries: int = 20) -> list[int]:
    """For each wanted port the next free one from it on, all different; any free one past `tries`."""
    picked: list[int] = []
    for first in wanted:
        near = range(first, min(first + tries, LAST_PORT + 1))
        candidates = (port for port in near if port not in picked and is_free(port))
        port = next(candidates, None)
        picked.append(free_ports(1)[0] if port is None else port)
    return picked
