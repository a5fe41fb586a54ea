"""An environment in which each kind of failure can be caused: by the answer, by a call, or by neither."""

import asyncio
import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

from upcycle import Environment, InfrastructureError


class DatabaseAway(Exception):
    """The outside world, as an environment may declare it."""


env = Environment("blame", external_errors=(ConnectionError, DatabaseAway))


@env.tool()
def exits() -> str:
    """Ends its process."""
    os._exit(7)


@env.tool()
def killed() -> str:
    """Killed as the kernel kills for memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@env.tool()
def exits_later() -> str:
    """Ends its process after it has answered."""
    threading.Timer(0.05, os._exit, args=(8,)).start()
    return "soon"


@env.tool()
def blocks() -> str:
    """Blocks the whole process."""
    time.sleep(600)
    return ""


@env.tool()
def spins() -> str:
    """Computes for ever."""
    while True:
        pass


@env.tool()
def fills(megabytes: int) -> str:
    """Writes to memory as native code does that does not look whether it got any."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    ctypes.memset(libc.malloc(megabytes << 20), 1, 1)
    return f"{megabytes} MB"


@env.tool()
async def naps(seconds: float) -> str:
    """Takes its time and blocks nothing."""
    await asyncio.sleep(seconds)
    return "rested"


@env.tool()
def process() -> str:
    """Which process this is."""
    return str(os.getpid())


@env.tool()
def asks(what: str) -> str:
    """Fails as its outside world fails, or as a tool does."""
    raise {
        "refused": ConnectionRefusedError("port 5432"),
        "declared": DatabaseAway("no master"),
        "infrastructure": InfrastructureError("the index is being rebuilt"),
        "file": FileNotFoundError("notes.txt"),
        "slow": TimeoutError("no row within 5 s"),
        "group": ExceptionGroup("two", [ConnectionResetError("a"), DatabaseAway("b")]),
        "mixed": ExceptionGroup("two", [ConnectionResetError("a"), KeyError("b")]),
    }[what]


@env.scenario()
async def parses() -> AsyncGenerator[Any, Any]:
    """Grades JSON; an empty answer is 0, any other text raises."""
    answer = yield "go"
    yield float(json.loads(answer)["score"]) if answer else 0.0


@env.scenario()
def misbehaves() -> Generator[Any, Any, None]:
    """Does what the answer says."""
    answer = yield "go"
    if answer == "hang":
        time.sleep(600)
    if answer == "exit":
        os._exit(9)
    if answer == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if answer == "nan":
        yield float("nan")
    if answer == "database":
        raise DatabaseAway("no master")
    yield 0.5


@env.scenario()
async def counts_turns() -> AsyncGenerator[Any, Any]:
    """Reads the trajectory, which is there for an empty answer too."""
    answer = yield "go"
    if len(answer.trajectory.turns) > 1:
        raise IndexError("more turns than it has room for")
    yield 1.0


@env.scenario()
async def reads_last_turn() -> AsyncGenerator[Any, Any]:
    """Every answer has a last turn; one that is empty is 0."""
    answer = yield "go"
    text = answer.trajectory.turns[-1].text
    yield float(json.loads(text)) if text else 0.0


@env.scenario()
async def needs_json() -> AsyncGenerator[Any, Any]:
    """Broken: raises on an empty answer too."""
    answer = yield "go"
    yield float(json.loads(answer))


@env.scenario()
def breaks_in_between(flag: str) -> Generator[Any, Any, None]:
    """The answer raises; by then the outside world is away, so no fresh instance can start."""
    if os.path.exists(flag):
        raise DatabaseAway("no master")
    answer = yield "go"
    with open(flag, "w"):
        pass
    raise ValueError(str(answer))
