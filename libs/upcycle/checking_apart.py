"""`validate` in a process of its own, which a play may end: that is a finding, with what the play printed.

The process is a new one and not a fork of this one: where a gRPC channel of the parent is garbage in a forked
child, collecting it waits for a thread that only the parent has, without end (grpcio 1.85, seen). It has a
session of its own, and ends with this process; what it started and left there ends with the check.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO, TextIOWrapper
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from upcycle.checking import CheckFinding, CheckLimits, OnTask, PlayWatcher, Validation, validate
from upcycle.errors import UpcycleError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from upcycle.task_rows import EnvironmentRef, Task

_LOOK_S: Final = 0.2
"""How often it is looked whether the process is there: its end alone is not heard of while a child of it
lives."""
_END_S: Final = 5.0
_SILENT_S: Final = 60.0
"""Beyond the deadline of a play: then nothing interrupts it; it is stopped, blocks signals, or waits in C."""
_BEGIN_S: Final = 600.0
"""Until the first play: an environment is imported and initialised, and its servers start."""
_SHOWN_CHARS: Final = 500


def validate_apart(
    where: "EnvironmentRef",
    tasks: Sequence["Task"],
    limits: CheckLimits,
    on_task: OnTask,
    answers: Sequence[str] = (),
) -> Validation:
    """As `validate` says, of the environment of a file. Call it where no event loop runs. Raises UpcycleError
    as `validate` and `load_environment` do, and for a check that ended before its first play."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with _output_file() as printed:
        process = context.Process(target=_play, args=(where, tasks, limits, answers, sender, printed.name))
        process.start()
        sender.close()
        try:
            return _Seen(len(tasks), printed, on_task, limits.play_s).until_done(process, receiver)
        except KeyboardInterrupt:  # a terminal's Ctrl-C does not reach its session
            os.kill(process.pid or 0, signal.SIGINT)
            raise
        finally:
            _end(process)


@contextmanager
def _output_file() -> Iterator[IO[bytes]]:
    """Of what plays print. The process that prints removes its name, before a play can."""
    number, name = tempfile.mkstemp(prefix="upcycle-check-")
    os.close(number)
    try:
        with open(name, "rb") as file:
            yield file
    finally:
        Path(name).unlink(missing_ok=True)


def _end(process: "SpawnProcess") -> None:
    try:
        process.join(_END_S)  # after Ctrl-C it ends by itself
    finally:  # at once after a second Ctrl-C
        if process.pid is not None and hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


class _Seen:
    """What the process has said so far."""

    def __init__(self, num_given: int, printed: IO[bytes], on_task: OnTask, play_s: float) -> None:
        self._num_given = num_given
        self._play_s = play_s
        self._printed = printed
        self._on_task = on_task
        self._num_tasks = self._num_begun = self._start = 0
        self._who: tuple[str, str] | None = None

    def until_done(self, process: "SpawnProcess", receiver: Connection) -> Validation:
        while (said := _next(process, receiver, self._silent_s)) is not None:
            match said:
                case ("task", (number, count, slug)):
                    self._num_tasks = number
                    self._on_task(number, count, slug)
                case ("play", (slug, who, start)):
                    self._num_begun += 1
                    self._who, self._start = (slug, who), start
                case ("done", Validation() as seen):
                    return seen
                case ("refused", UpcycleError() as error):
                    raise error
        process.join(_END_S)
        if process.is_alive() and self._who is None:
            raise UpcycleError(
                f"no play began within {_BEGIN_S:g} s: importing or initialising the environment does not end"
                f"{self._printed_so_far()}"
            )
        if process.is_alive():
            why = f"its process lives and says nothing any more; a play may take {self._play_s:g} s"
            return self._stopped(why, "a play did not end")
        return self._ended(process.exitcode or 0)

    @property
    def _silent_s(self) -> float:
        """How long nothing may be heard."""
        return _BEGIN_S if self._who is None else self._play_s + _SILENT_S

    def _ended(self, status: int) -> Validation:
        how = f"exit status {status}" if status >= 0 else f"signal {_signal(-status)}"
        if self._who is None:
            raise UpcycleError(f"the check ended before its first play, with {how}{self._printed_so_far()}")
        return self._stopped(f"it ended its process, with {how}", "a play ended its process")

    def _printed_so_far(self) -> str:
        printed = tail_of(self._printed, self._start)
        return f"; it printed:\n{printed}" if printed else ""

    def _stopped(self, why: str, stopped: str) -> Validation:
        slug, who = self._who or ("", "")
        found = CheckFinding("raises", slug, f"{who}: {why}", tail_of(self._printed, self._start))
        return Validation(
            self._num_tasks,
            (found,),
            num_given=self._num_given,
            num_plays=self._num_begun - self._num_tasks,  # each task begins with its prompt
            stopped=stopped,
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _next(process: "SpawnProcess", receiver: Connection, within_s: float) -> Any:
    """What it says next; None: it ended, or lives and says nothing for so long."""
    until_s = time.monotonic() + within_s
    while not receiver.poll(_LOOK_S):
        if time.monotonic() > until_s:
            return None
        if not process.is_alive() and not receiver.poll():
            return None
    try:
        return receiver.recv()
    except EOFError:
        return None


def tail_of(printed: IO[bytes], start: int) -> str:
    """The end of what was printed from a place of the file on; "" for nothing."""
    size = os.fstat(printed.fileno()).st_size
    first = max(start, size - 4 * _SHOWN_CHARS)
    text = os.pread(printed.fileno(), size - first, first).decode(errors="replace").strip()
    return text if len(text) <= _SHOWN_CHARS else f"…{text[-_SHOWN_CHARS:]}"


class _Telling(PlayWatcher):
    """In the process that plays. start: where the output of the play begins."""

    def __init__(self, sender: Connection, printed: IO[bytes]) -> None:
        self._sender, self._file, self._start = sender, printed, 0

    def begins(self, slug: str, who: str) -> None:
        self._start = os.fstat(self._file.fileno()).st_size
        self._sender.send(("play", (slug, who, self._start)))

    def printed(self) -> str:
        return tail_of(self._file, self._start)


def _live_apart() -> None:
    """In a session of its own, so that all that a play leaves there can be ended, and no longer than the
    process that waits for it."""
    from upcycle.environment.forking import can_fork, die_with_parent

    parent = multiprocessing.parent_process()
    if hasattr(os, "setsid"):
        os.setsid()
    if can_fork() and parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)


def _play(
    where: "EnvironmentRef",
    tasks: Sequence["Task"],
    limits: CheckLimits,
    answers: Sequence[str],
    sender: Connection,
    output: str,
) -> None:
    from upcycle.environment.loading import load_environment

    _live_apart()
    printed = FileIO(output, "r+")
    os.unlink(output)
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    sys.stdout = sys.stderr = TextIOWrapper(FileIO(1, "w", closefd=False), "utf-8", write_through=True)

    def on_task(number: int, count: int, slug: str) -> None:
        sender.send(("task", (number, count, slug)))

    try:
        watcher = _Telling(sender, printed)
        environment = load_environment(where.path, where.name)
        seen = asyncio.run(validate(environment, tasks, limits, on_task, watcher, answers))
        sender.send(("done", seen))
    except UpcycleError as error:
        sender.send(("refused", error))
