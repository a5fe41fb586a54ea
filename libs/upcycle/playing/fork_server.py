"""A process that has loaded one environment and forks itself for each episode: `python -m` with a file
descriptor, the environment's file and its name.

On the descriptor it says {"ready": pid} or {"broken": why}; then it runs the loop of
`upcycle.environment.forking`: each fork comes with the episode's socket and the pipe for what it prints. It
has no keys and no connection of its parent.
"""

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from upcycle.environment.forking import ForkLoop, adopt_orphans, die_with_parent
from upcycle.environment.loading import load_environment
from upcycle.playing.hosting import be_the_environment

_MAX_SAID_CHARS: Final = 16 * 1024


def serve(control: socket.socket, path: str, name: str) -> None:
    """Until the other side closes the socket."""
    fork_server = os.getpid()
    try:
        environment = load_environment(path, name)
    except BaseException:
        _say(control, {"broken": traceback.format_exc(limit=-8)[-_MAX_SAID_CHARS:]})
        raise
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the other side closes the socket
    adopt_orphans()

    def become(_command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        die_with_parent(fork_server)
        control.close()
        channel, output = descriptors
        be_the_environment(environment, socket.socket(fileno=channel), output)

    loop = ForkLoop(control, become)
    _say(control, {"ready": fork_server})
    loop.run()


def _say(control: socket.socket, message: Mapping[str, Any]) -> None:
    control.send(json.dumps(message).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3])
