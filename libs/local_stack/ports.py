"""Free TCP ports on the loopback."""

import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """`count` different ports that are free now. Bind soon: nothing reserves them."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


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
        candidates = (port for port in range(first, first + tries) if port not in picked and is_free(port))
        port = next(candidates, None)
        picked.append(free_ports(1)[0] if port is None else port)
    return picked
