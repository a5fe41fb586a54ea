"""A real nats-server on the loopback, durable from its first message: file store, fsync before each PubAck.

`nats_command` writes the configuration and starts nothing; `NatsServer` runs it, waits until JetStream
answers, and can be killed and restarted on the same data and ports.
"""

import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_stack.server import LocalServer, LocalServerError
from service_kit.ports import free_ports


class NatsServerError(LocalServerError):
    """nats-server is missing, did not start, or died; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """The one user that the server lets in."""

    user: str
    password: str


def nats_command(
    data_dir: Path, *, port: int, http_port: int, login: NatsLogin | None = None, max_store_gb: int = 20
) -> tuple[str, ...]:
    """Write `nats.conf` into `data_dir` and return the argv that runs it; starts nothing.

    A running server says in `<data_dir>/ports/` that it listens.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "ports").mkdir(exist_ok=True)
    config = data_dir / "nats.conf"
    config.write_text(_config(data_dir, port, http_port, login, max_store_gb))
    config.chmod(0o600)
    return (_binary(), "-c", str(config))


def _binary() -> str:
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise NatsServerError("no nats-server beside this Python nor on PATH: pip install 'upcycle-platform[local]'")
    return found


def _config(data_dir: Path, port: int, http_port: int, login: NatsLogin | None, max_store_gb: int) -> str:
    lines = [
        "server_name: upcycle",
        "host: 127.0.0.1",
        f"port: {port}",
        f'http: "127.0.0.1:{http_port}"',
        "max_payload: 1MB",
        f"ports_file_dir: {json.dumps(str(data_dir / 'ports'))}",
        # Default is one fsync every two minutes: an acknowledged message could be lost with the machine.
        f"jetstream {{ store_dir: {json.dumps(str(data_dir / 'js'))}, sync_interval: always,"
        f" max_file_store: {max_store_gb}GB, max_memory_store: 256MB }}",
    ]
    if login is not None:
        user, password = json.dumps(login.user), json.dumps(login.password)
        lines.append(f"authorization {{ users: [ {{ user: {user}, password: {password} }} ] }}")
    return "\n".join(lines) + "\n"


class NatsServer(LocalServer):
    """One nats-server process. Not started until `start()` or `with`; ports stay the same across restarts,
    so they are chosen where no outgoing connection can take them in between."""

    name = "nats-server"
    error = NatsServerError
    ready_timeout_s = 20.0

    def __init__(self, data_dir: Path, port: int = 0, *, login: NatsLogin | None = None) -> None:
        """port: of clients; 0: a free one, chosen at the first start."""
        super().__init__(data_dir)
        self._port = port
        self._http_port = 0
        self._login = login

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
        argv = nats_command(self._data_dir, port=self._port, http_port=self._http_port, login=self._login)
        return argv, {}

    def _await_ready(self, give_up_at: float) -> None:
        # Before its health: whoever answers on the port must be this very process.
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
