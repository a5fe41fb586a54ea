"""One server program as a child of this process: started, watched until it is ready, stopped, killed."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Final, Self

_STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.005
_LAST_LINES: Final = 8


class LocalServerError(Exception):
    """A server program is missing, did not start, or died; the message ends with its last log lines."""


class LocalServer:
    """What every server of the stack has in common. Not started until `start()` or `with`; data and ports
    stay the same across restarts.
    """

    name: ClassVar[str]
    """Of the program; also of its log file."""
    error: ClassVar[type[LocalServerError]]
    ready_timeout_s: ClassVar[float]

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises the server's error when there is none."""
        if self._process is None:
            raise self.error(f"{self.name} on {self._data_dir} is not running")
        return self._process.pid

    def start(self, *, timeout_s: float | None = None) -> None:
        """Start and wait until it is ready. Raises the server's error; then nothing runs."""
        if self._process is not None:
            raise self.error(f"{self.name} on {self._data_dir} already runs as pid {self._process.pid}")
        argv, environment = self._command()
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._log = self._log_path.open("ab")
        self._process = subprocess.Popen(
            argv, env={**os.environ, **environment}, stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            self._await_ready(time.monotonic() + (self.ready_timeout_s if timeout_s is None else timeout_s))
        except LocalServerError:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait; kills it after the limit."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def restart(self, *, timeout_s: float | None = None) -> None:
        """Stop gracefully and start again on the same data and ports."""
        self.stop()
        self.start(timeout_s=timeout_s)

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """What to run, and what its environment needs beside ours."""
        raise NotImplementedError

    def _await_ready(self, give_up_at: float) -> None:
        """Return when it can be used. Raises the server's error."""
        raise NotImplementedError

    def _wait_a_little(self, give_up_at: float, what: str) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            code = None if process is None else process.returncode
            raise self.error(f"{self.name} ended with {code} before {what}{self._log_tail()}")
        if time.monotonic() > give_up_at:
            raise self.error(f"{self.name} (pid {process.pid}) is not {what} in time{self._log_tail()}")
        time.sleep(_POLL_S)

    @property
    def _log_path(self) -> Path:
        return self._data_dir / f"{self.name}.log"

    def _log_tail(self) -> str:
        path = self._log_path
        lines = path.read_text(errors="replace").splitlines()[-_LAST_LINES:] if path.exists() else []
        return ":\n" + "\n".join(lines) if lines else ""

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_TIMEOUT_S)
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)
