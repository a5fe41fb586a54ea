"""`BashGrader`: a command decides, such as a test suite over what the agent left behind."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final

from upcycle.errors import DefinitionError
from upcycle.rubrics import Grader, Verdict

MAX_OUTPUT_CHARS: Final = 2_000
IN_THE_SCENARIO: Final = "put it into the scenario's rubric: that is graded in the episode's isolation"
_KEPT: Final = ("PATH", "HOME", "LANG", "TMPDIR")
_REFUSED: ContextVar[str] = ContextVar("commands_refused", default="")


class BashGrader(Grader):
    """1 if the command ends with status 0 within timeout_s, else 0; the end of its output is in the info.

        BashGrader("pytest -q tests", cwd=workspace).weighing(1.0, required=True)

    It runs in the episode's process, so in its isolation (in the fleet: limits, the filter on system calls, a
    folder of its own), with PATH, HOME, LANG, TMPDIR and no other variable, and gets the answer on its
    standard input. What it starts is killed with it. The grader service refuses it as an extra grader, where
    it would run beside the platform's keys. It trusts the files that it runs: keep the tests where no tool of
    the agent writes. Keep timeout_s below the 50 s that a grade may take in the fleet: an endless loop of the
    agent's program is 0 then, and not a broken environment. Raises DefinitionError for an empty command.
    """

    def __init__(
        self, command: str, *, cwd: Path | str | None = None, timeout_s: float = 30.0, name: str = "bash"
    ) -> None:
        if not command.strip() or timeout_s <= 0:
            raise DefinitionError(
                f"BashGrader: command {command!r}, timeout_s {timeout_s:g}",
                "an empty command ends with status 0 for every answer; give one, and a time above 0",
            )
        super().__init__(name, partial(_run, command, cwd, timeout_s))


def runs_commands(graders: Iterable[Grader]) -> str:
    """The name of the first one that is a BashGrader, or was made of one by `weighing`; "" where none is."""
    ours = (one.name for one in graders if getattr(one.score, "func", None) is _run)
    return next(ours, "")


@contextmanager
def commands_refused(why: str) -> Iterator[None]:
    """Within it, also in threads that it starts, no BashGrader runs: for a process that is no episode."""
    before = _REFUSED.set(why)
    try:
        yield
    finally:
        _REFUSED.reset(before)


def _run(command: str, cwd: Path | str | None, timeout_s: float, answer: str) -> Verdict:
    if why := _REFUSED.get():
        raise DefinitionError(f"BashGrader: command {command!r:.80} is not run: {why}", IN_THE_SCENARIO)
    variables = {key: value for key, value in os.environ.items() if key in _KEPT}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(answer.encode(errors="replace"))
        given.seek(0)
        with subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=cwd,
            env=variables,
            stdin=given,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                status: int | str = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                status = f"not over within {timeout_s:g} s"
            finally:
                _kill_group(process.pid)
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4 * MAX_OUTPUT_CHARS))
        output = said.read().decode(errors="replace")[-MAX_OUTPUT_CHARS:]
    return float(status == 0), {"status": status, "output": output}


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
