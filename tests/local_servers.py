"""A real server program as a child of the test: started, awaited until it is ready, killed, started again."""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Final, Self

from pydantic import SecretStr

from blob_store.keys import StoreKey
from blob_store.provision import provision_bucket
from local_stack.nats import NatsLogin, NatsMember, NatsServerError, nats_command
from local_stack.s3 import S3Ports, S3ServerError, make_bucket_durable, s3_command, takes_a_write
from service_kit.groups import S3Settings
from service_kit.ports import LOOPBACK, free_ports

_STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.005
_LAST_LINES: Final = 8


class LocalServer:
    """What every server of the stack has in common. Not started until `start()` or `with`; data and ports
    stay the same across restarts.
    """

    name: ClassVar[str]
    """Of the program; also of its log file."""
    error: ClassVar[type[Exception]]
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
        except self.error:
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


class NatsServer(LocalServer):
    """One nats-server process. Not started until `start()` or `with`; ports stay the same across restarts,
    so they are chosen where no outgoing connection can take them in between."""

    name = "nats-server"
    error = NatsServerError
    ready_timeout_s = 20.0

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        login: NatsLogin | None = None,
        accounts: str = "",
        member: NatsMember | None = None,
    ) -> None:
        """port: of clients; 0: a free one, chosen at the first start. accounts: see nats_command. member: of
        a cluster."""
        super().__init__(data_dir)
        self._member = member
        self._port = port
        self._http_port = 0
        self._login = login
        self._accounts = accounts

    @property
    def url(self) -> str:
        """Address for clients, without credentials."""
        return f"nats://127.0.0.1:{self._known(self._port)}"

    @property
    def monitor_url(self) -> str:
        """Base of the HTTP monitoring endpoints."""
        return f"http://127.0.0.1:{self._known(self._http_port)}"

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        if not self._http_port:
            found, self._http_port = free_ports(2)
            self._port = self._port or found
        # A killed server leaves its own; pids come again.
        for stale in (self._data_dir / "ports").glob("*.ports"):
            stale.unlink()
        argv = nats_command(
            self._data_dir,
            port=self._port,
            http_port=self._http_port,
            login=self._login,
            accounts=self._accounts,
            member=self._member,
        )
        return argv, {}

    def _await_ready(self, give_up_at: float) -> None:
        # Before its health: the process that answers on the port must be this one.
        listens = self._data_dir / "ports" / f"nats-server_{self.pid}.ports"
        while not listens.exists():
            self._wait_a_little(give_up_at, "writing its ports")
        while not self._healthy():
            self._wait_a_little(give_up_at, f"answering {self.monitor_url}/healthz?js-enabled-only=true")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(  # noqa: S310 - a loopback http URL made above
                f"{self.monitor_url}/healthz?js-enabled-only=true", timeout=1
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _known(self, port: int) -> int:
        if not port:
            raise NatsServerError(f"nats-server on {self._data_dir} has no port yet: start it first")
        return port


class S3Server(LocalServer):
    """One `weed mini` process. Not started until `start()` or `with`; ports stay the same across restarts."""

    name = "weed"
    error = S3ServerError
    ready_timeout_s = 30.0

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        *,
        bucket: str = "upcycle",
        keys: Mapping[str, StoreKey] | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        """`port` 0: a free one. keys: of services, beside the operator's. `extra_args`: further flags of
        `weed mini`."""
        super().__init__(data_dir)
        self.ports = S3Ports.pick(port)
        self.settings = S3Settings(
            endpoint=f"{LOOPBACK}:{self.ports.s3}",
            access_key=SecretStr("upcycle"),
            secret_key=SecretStr("upcycle-secret"),
            bucket=bucket,
        )
        self._keys = keys or {}
        self._extra_args = tuple(extra_args)

    @property
    def home(self) -> Path:
        """Where its programs find what opens its inner ports."""
        return self._data_dir / "home"

    def settings_for(self, bucket: str) -> S3Settings:
        """Settings for another bucket of this server, which is created when it is missing."""
        settings = self.settings.model_copy(update={"bucket": bucket})
        if provision_bucket(settings):
            make_bucket_durable(self._data_dir, self.ports, bucket)
        return settings

    def _command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        command = s3_command(
            self._data_dir, self.ports, self.settings, keys=self._keys, extra_args=self._extra_args
        )
        return command.argv, command.env

    def _await_ready(self, give_up_at: float) -> None:
        """The bucket exists, is durable, and takes a write: only then is every part of the server up."""
        while not self._accepts(self.ports.s3):
            self._wait_a_little(give_up_at, "listening")
        if provision_bucket(self.settings, wait_s=max(give_up_at - time.monotonic(), 0.1)):
            make_bucket_durable(self._data_dir, self.ports, self.settings.bucket)
        while not takes_a_write(self.settings):
            self._wait_a_little(give_up_at, "taking writes")

    @staticmethod
    def _accepts(port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((LOOPBACK, port)) == 0
