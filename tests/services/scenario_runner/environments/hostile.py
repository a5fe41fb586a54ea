"""An environment whose scenarios and tools misbehave in every way the platform must survive."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from typing import Any

from upcycle import Environment, EvaluationResult

env = Environment("hostile")


@env.tool()
def raises() -> str:
    """Always fails."""
    raise RuntimeError("the index is gone")


@env.tool()
def cancels() -> str:
    """Raises what a cancelled task does."""
    raise asyncio.CancelledError


@env.tool()
def huge() -> str:
    """50 MB of text."""
    return "x" * (50 * 1024 * 1024)


@env.tool()
async def sleepy(seconds: float) -> str:
    """Sleeps without blocking."""
    await asyncio.sleep(seconds)
    return "awake"


@env.tool()
def stuck(seconds: float) -> str:
    """Blocks the whole process."""
    time.sleep(seconds)
    return "unstuck"


@env.tool()
def dies() -> str:
    """Ends its own process."""
    os._exit(7)


@env.tool()
def not_json() -> Any:
    """Returns what JSON cannot carry."""
    return object()


@env.scenario()
async def cancels_first() -> AsyncGenerator[Any, Any]:
    raise asyncio.CancelledError
    yield "go"


@env.scenario()
async def fine() -> AsyncGenerator[Any, Any]:
    yield "go"
    yield 1.0


@env.scenario()
async def raises_first() -> AsyncGenerator[Any, Any]:
    raise ValueError("no database today")
    yield ""


def deeper(row: dict[str, str]) -> str:
    return row["missing"]


@env.scenario()
async def prints_and_raises() -> AsyncGenerator[Any, Any]:
    print("looking for the row")
    yield deeper({})


@env.scenario()
async def prints_much_and_raises() -> AsyncGenerator[Any, Any]:
    print("x" * 100_000 + "\nthe last line")
    raise ValueError("y" * 100_000)
    yield ""


@env.scenario()
async def fails_once(mark: str) -> AsyncGenerator[Any, Any]:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        raise ValueError("a port was taken")
    yield "?"
    yield 1.0


@env.scenario()
async def never_yields() -> AsyncGenerator[Any, Any]:
    return
    yield ""


@env.scenario()
async def no_prompt() -> AsyncGenerator[Any, Any]:
    yield 42
    yield 1.0


@env.scenario()
async def one_yield() -> AsyncGenerator[Any, Any]:
    yield "go"


@env.scenario()
async def hangs_first(seconds: float) -> AsyncGenerator[Any, Any]:
    await asyncio.sleep(seconds)
    yield "go"


@env.scenario()
def spins_first() -> Generator[Any, Any, None]:
    while True:
        pass
    yield ""


@env.scenario()
async def hangs_last(seconds: float) -> AsyncGenerator[Any, Any]:
    yield "go"
    await asyncio.sleep(seconds)
    yield 1.0


@env.scenario()
async def sends_a_set() -> AsyncGenerator[Any, Any]:
    yield "go"
    yield EvaluationResult(1.0, info={"words": {"a", "b"}})


@env.scenario()
async def raises_last() -> AsyncGenerator[Any, Any]:
    yield "go"
    raise KeyError("no such row")


@env.scenario()
async def rewards(value: str) -> AsyncGenerator[Any, Any]:
    yield "go"
    yield {"nan": float("nan"), "inf": float("inf"), "two": 2.0, "minus": -0.5, "text": "1.0", "none": None}[
        value
    ]


@env.scenario()
async def thrice() -> AsyncGenerator[Any, Any]:
    yield "go"
    yield 1.0
    yield 0.5


@env.scenario()
async def exits() -> AsyncGenerator[Any, Any]:
    sys.exit(3)
    yield ""


@env.scenario()
async def killed() -> AsyncGenerator[Any, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield ""


@env.scenario()
async def eats_memory() -> AsyncGenerator[Any, Any]:
    hoard = bytearray(8 << 30)
    yield f"{len(hoard)}"


@env.scenario()
def forks(pid_file: str) -> Generator[Any, Any, None]:
    """Leaves a child, a grandchild in its own session, and a program behind."""
    pids = []
    for escape in (False, True):
        pid = os.fork()
        if pid == 0:
            if escape:
                os.setsid()
                if os.fork():
                    os._exit(0)
            with open(pid_file, "a") as noted:
                noted.write(f"{os.getpid()}\n")
            time.sleep(600)
            os._exit(0)
        pids.append(pid)
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(pid_file, "a") as noted:
        noted.write(f"{program.pid}\n")
    yield f"{pids}"
    yield 1.0


@env.scenario()
async def unshares() -> AsyncGenerator[Any, Any]:
    """Tries what the system call filter forbids."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.unshare(0x10000000) == -1 and libc.ptrace(0, 0, 0, 0) == -1
    yield f"refused={refused}"
    yield 1.0


@env.tool()
def flood() -> str:
    """Forks until the system refuses, at most 400 times; every child sleeps."""
    count = 0
    try:
        for _ in range(400):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            count += 1
    except OSError as error:
        return f"{count} then {type(error).__name__}"
    return f"{count} and no end"


@env.tool()
def fill_disk(megabytes: int) -> str:
    """Writes one large file into the episode's folder."""
    with open("large", "wb") as large:
        for _ in range(megabytes):
            large.write(b"x" * (1 << 20))
    return "written"


@env.tool()
def open_files(count: int) -> str:
    """Holds files open."""
    held = [open(os.devnull) for _ in range(count)]  # noqa: SIM115 - held on purpose
    return f"{len(held)}"


@env.tool()
def take_memory(megabytes: int) -> str:
    """Asks Python for one large piece."""
    return f"{len(bytearray(megabytes << 20)) >> 20} MB"


@env.tool()
def identity() -> str:
    """Who this process is and what it may touch."""
    folder = os.stat(".")
    return f"{os.getuid()} {oct(folder.st_mode & 0o777)} {folder.st_uid}"
