"""An environment whose tool starts programs, as authors start servers."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment

env = Environment("children")

SLEEPS = "import time; time.sleep(600)"
LEAVES = """
import os, sys, time
if os.fork():
    os._exit(0)
if sys.argv[1] == "daemon":
    os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)  # a daemon may be killed before it
os.close(1)
time.sleep(600)
"""
"""As daemons are started: by a process that starts another one and ends."""


@env.tool()
def start(how: str) -> int:
    """The pid of a program that sleeps: a `child`, an `orphan` of the episode's session, or a `daemon`."""
    if how == "child":
        return subprocess.Popen([sys.executable, "-c", SLEEPS], start_new_session=True).pid
    with subprocess.Popen([sys.executable, "-c", LEAVES, how], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        return int(started.stdout.readline() or 0)


@env.scenario()
async def play() -> AsyncGenerator[Any, Any]:
    yield "go"
    yield 1.0
