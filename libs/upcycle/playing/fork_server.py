"""A process that has loaded one environment and forks itself for each episode: `python -m` with a file
descriptor, the environment's file, its name, and, for episodes in a cell, the folder of all of them.

On the descriptor it says {"ready": pid, "secrets": {name: server}} or {"broken": why}; then it runs the loop
of `upcycle.environment.forking`: each fork comes with the episode's socket, the pipe for what it prints, and
the secrets that MCP servers name, where they do. It has no keys and no connection of its parent.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from upcycle.environment.forking import ForkLoop, adopt_orphans, die_with_parent
from upcycle.environment.loading import load_environment, why_not_loaded
from upcycle.environment.server_secrets import from_memory
from upcycle.modules import package_of
from upcycle.playing.cells import WAY_OUT, EpisodeCell
from upcycle.playing.hosting import be_the_environment

_MAX_SAID_CHARS: Final = 16 * 1024


def serve(control: socket.socket, path: str, name: str, folder: str = "") -> None:
    """Until the other side closes the socket. folder: with it each episode has a cell, and names its own."""
    fork_server = os.getpid()
    try:
        cell = EpisodeCell(Path(folder), _root_of(Path(path).resolve())) if folder else None
        if cell is not None:
            cell.enter()
        environment = load_environment(path, name)
        if cell is not None:
            cell.prepare()
    except BaseException as error:
        way_out = f"\n{WAY_OUT}" if folder and isinstance(error, PermissionError) else ""
        _say(control, {"broken": f"{why_not_loaded(error)[-_MAX_SAID_CHARS:]}{way_out}"})
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the other side closes the socket
    adopt_orphans()

    def become(command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        die_with_parent(fork_server)
        control.close()
        if cell is not None:
            cell.narrow(command["folder"])
        channel, output, *secrets = descriptors
        values = from_memory(secrets[0]) if secrets else {}
        be_the_environment(environment, socket.socket(fileno=channel), output, values)

    loop = ForkLoop(control, become)
    _say(control, {"ready": fork_server, "secrets": environment.servers.secrets})
    loop.run()


def _say(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def _root_of(file: Path) -> Path:
    """Below which all of its source lies."""
    package_root, _ = package_of(file)
    return package_root or file.parent


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), *sys.argv[2:])
