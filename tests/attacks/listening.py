"""Where processes of this machine listen."""

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
_TABLES: Final = ((Path("/proc/net/tcp"), socket.AF_INET), (Path("/proc/net/tcp6"), socket.AF_INET6))


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of the TCP sockets on which these processes listen."""
    ours = {inode for pid in pids for inode in _sockets(pid)}
    return {where for inode, where in _all_listening() if inode in ours}


def _sockets(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            if (target := os.readlink(descriptor)).startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")


def _all_listening() -> Iterator[tuple[str, tuple[str, int]]]:
    """By inode."""
    for table, family in _TABLES:
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == _LISTEN:
                host, _, port = columns[1].partition(":")
                words = struct.unpack(f">{len(host) // 8}I", bytes.fromhex(host))  # words of this machine
                address = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
                yield columns[9], (address, int(port, 16))
