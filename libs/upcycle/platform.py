"""Where a running platform is, and one client for all of its public services.

Addresses come from `UPCYCLE_PEERS_*` and the project's `upcycle.toml`; without them from the state file of
the stack that `upcycle up` (or `demo`) started in this folder or one above; else from the user's profile.
Nothing connects before `async with`.
"""

import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from upcycle.errors import Unavailable, UpcycleError
from upcycle.user_settings.files import SettingsRefused, check_private, trusted_owners
from upcycle.user_settings.layers import Found, Layer, UserSettings

if TYPE_CHECKING:
    from upcycle.api.audit.v1.service_pb2_grpc import AuditServiceAsyncStub
    from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceAsyncStub
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub
    from upcycle.api.retention.v1.service_pb2_grpc import RetentionServiceAsyncStub
    from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceAsyncStub
    from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceAsyncStub
    from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceAsyncStub
    from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceAsyncStub

STATE_FILES = (".upcycle/up/state.json", ".upcycle/demo/state.json")
_OTHERS_WRITE = 0o022
ONLY_PEERS = "UPCYCLE_PEERS_*"
"""`Addresses.source` where all of them are variables; in files their names say which."""
PEERS = {  # public addresses, and the service at each
    "tasksets": "scenario_runner",
    "environments": "scenario_runner",
    "trajectories": "trajectory_store",
    "training": "grpo_trainer",
    "registry": "checkpoint_registry",
    "gateway": "model_gateway",
}


class PlatformNotFound(UpcycleError, LookupError):
    """No platform is configured and none was started from this folder."""

    kind = "platform_not_found"


@dataclass(frozen=True, slots=True)
class Addresses:
    """host:port of each public service, the files of its keys, and `source`: where these were found.
    state_file: of the stack that they are of, where it runs here. elsewhere: the services that are none of
    that stack's. unconfirmed: those whose address a project's file alone gives, and where it does."""

    peers: Mapping[str, str]
    source: str
    gateway_key_file: Path | None = None
    state_file: Path | None = None
    operator_key_file: Path | None = None
    elsewhere: frozenset[str] = frozenset()
    unconfirmed: Mapping[str, str] = field(default_factory=dict)

    @property
    def gateway_url(self) -> str:
        """Base URL for an OpenAI client."""
        gateway = self.peers["gateway"]
        return f"{gateway}/v1" if "://" in gateway else f"http://{gateway}/v1"

    def gateway_key(self) -> str:
        """UPCYCLE_API_KEY, or the key of a local stack, or that of the user's profile. Raises
        PlatformNotFound when there is none, SettingsRefused where it would go to an address of a project's
        file alone."""
        variable, file = "UPCYCLE_API_KEY", self._file_for("gateway", self.gateway_key_file)
        found = UserSettings.read().find(f"keys.{variable}")
        if found.value and found.layer is Layer.ENVIRONMENT:
            return self._sent("gateway", found.value)
        if file is not None and file.exists():
            return file.read_text().strip()
        if found.value:
            return self._sent("gateway", found.value)
        raise PlatformNotFound(
            f"no key of the gateway is known: {self.source} gives addresses only",
            f"set {variable}; `upcycle up` writes the key of a local platform to DATA_DIR/gateway.key",
        )

    def gateway_key_hint(self) -> str:
        """The way out where the gateway does not take the key that it was sent."""
        file = self._file_for("gateway", self.gateway_key_file)
        found = UserSettings.read().find("keys.UPCYCLE_API_KEY")
        if file is None or not file.exists():
            return "set the key of this platform in UPCYCLE_API_KEY"
        if found.value and found.layer is Layer.ENVIRONMENT:
            return f"unset UPCYCLE_API_KEY, which goes before the key of this platform in {file}"
        return f"{file} has no key of this gateway: stop `upcycle up`, and start it again"

    def platform_key(self, peer: str = "tasksets") -> str | None:
        """What the gRPC service `peer` is called with: the operator's key of a local stack, for its own
        services, else UPCYCLE_OPERATOR_KEY, else UPCYCLE_USER_KEY, variables before the profile. None: none
        is known, as where all may call. Raises SettingsRefused for a file that others can open, and where a
        key would go to an address of a project's file alone."""
        file = self._file_for(peer, self.operator_key_file)
        if file is not None and os.access(file, os.R_OK):
            check_private(file)
            return file.read_text().strip()
        settings = UserSettings.read()
        names = ("UPCYCLE_OPERATOR_KEY", "UPCYCLE_USER_KEY")
        found = [one for name in names if (one := settings.find(f"keys.{name}")).value]
        found.sort(key=lambda one: one.layer is not Layer.ENVIRONMENT)
        return self._sent(peer, found[0].value) if found else None

    def _file_for(self, peer: str, file: Path | None) -> Path | None:
        """A key of the stack is for the stack's own services."""
        return None if peer in self.elsewhere else file

    def _sent(self, peer: str, key: str) -> str:
        if (place := self.unconfirmed.get(peer)) is None:
            return key
        address = self.peers[peer]
        raise SettingsRefused(
            f"{place} has {PEERS[peer]} at {address}, to which your key would be sent; a project's file "
            "alone does not say where keys go",
            f"if {address} is yours: upcycle set platform.{peer}, or UPCYCLE_PEERS_{peer.upper()}={address}; "
            "all services of one host: platform.host or UPCYCLE_PLATFORM_HOST",
        )


def find_addresses(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Addresses:
    """Addresses from the environment and the project's file, else from the nearest running stack, else from
    the user's profile. Raises PlatformNotFound, SettingsRefused."""
    here = (start or Path.cwd()).absolute()
    settings = UserSettings.read(environ, here)
    near = settings.peers(Layer.ENVIRONMENT, Layer.PROJECT)
    if len(near) == len(PEERS):
        return _named(near, settings)
    if (found := running_stack(here, settings)) is not None:
        path, state = found
        keys = [state.get("gateway_key_file"), state.get("operator_key_file")]
        gateway_key, operator_key = (path.absolute().parent / file if file else None for file in keys)
        peers = {**state["peers"], **{peer: one.value for peer, one in near.items()}}
        elsewhere = frozenset(peer for peer, address in peers.items() if address != state["peers"].get(peer))
        unconfirmed = _unconfirmed({peer: near[peer] for peer in elsewhere}, settings)
        return Addresses(peers, str(path), gateway_key, path, operator_key, elsewhere, unconfirmed)
    named = settings.peers(*Layer)
    if len(named) == len(PEERS):
        return _named(named, settings)
    if named:
        missing = ", ".join(f"UPCYCLE_PEERS_{peer.upper()}" for peer in PEERS if peer not in named)
        raise PlatformNotFound(
            f"some service addresses are not set: {missing}", "set them, or run `upcycle up`"
        )
    raise PlatformNotFound(
        f"no running platform was found from {here} upwards",
        "start one with `upcycle up`; one elsewhere is named by UPCYCLE_UP_DATA_DIR (its data folder on this "
        "machine), UPCYCLE_PLATFORM_HOST or UPCYCLE_PEERS_*",
    )


def _named(found: Mapping[str, Found], settings: UserSettings) -> Addresses:
    places = dict.fromkeys(_source(one) for one in found.values())
    peers = {peer: one.value for peer, one in found.items()}
    return Addresses(peers, ", ".join(places), unconfirmed=_unconfirmed(found, settings))


def _unconfirmed(found: Mapping[str, Found], settings: UserSettings) -> dict[str, str]:
    """A project's file comes with a repository, so it may be anybody's: where it is the only one to name a
    host, no key goes there."""
    own = [*settings.peers(Layer.ENVIRONMENT).values(), *settings.peers(Layer.PROFILE).values()]
    known = {host_of(one.value) for one in own}
    return {
        peer: one.place
        for peer, one in found.items()
        if one.layer is Layer.PROJECT and not is_loopback(one.value) and host_of(one.value) not in known
    }


def host_of(address: str) -> str:
    """Without its port."""
    return address.rpartition(":")[0].strip("[]").lower()


def is_loopback(address: str) -> bool:
    """Whether `host:port` is on this machine. A name is, where it says so by itself: none is looked up."""
    host = host_of(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _source(found: Found) -> str:
    if found.layer is Layer.ENVIRONMENT:
        return ONLY_PEERS if found.place.startswith(ONLY_PEERS[:-1]) else found.place
    return found.place.rpartition(":")[0]


def running_stack(
    start: Path | None = None, settings: UserSettings | None = None
) -> tuple[Path, dict[str, Any]] | None:
    """State file, and its content, of the nearest stack of `upcycle up` that runs: one whose folder the
    settings name, else in this folder or one above. Raises SettingsRefused for a file that others wrote, or
    could."""
    here = (start or Path.cwd()).absolute()
    data_dir = (settings or UserSettings.read(start=here)).find("up.data_dir")
    is_set = data_dir.layer is not Layer.DEFAULT and data_dir.value
    chosen = [Path(data_dir.value) / "state.json"] if is_set else []
    nearest = (folder / name for folder in (here, *here.parents) for name in STATE_FILES)
    for path in (*chosen, *nearest):
        if text := _state_text(path):
            state: dict[str, Any] = json.loads(text)
            if _alive(int(state["pid"])):
                _check_state(path, state)
                return path, state
    return None


def _check_state(path: Path, state: Mapping[str, Any]) -> None:
    """Our own `upcycle up` listens on loopback and keeps its keys beside this file. One that says something
    else came with a repository or an archive: it would send keys away, or any file that it names as one."""
    away = [
        f"{peer} at {address}" for peer, address in state.get("peers", {}).items() if not is_loopback(address)
    ]
    named = [state.get(name) for name in ("gateway_key_file", "operator_key_file", "credentials_file")]
    bus = state.get("bus") or {}
    folder = path.absolute().parent.resolve()
    files = [file for file in (*named, bus.get("nkey")) if file]
    away += [file for file in files if not (folder / file).resolve().is_relative_to(folder)]
    if (url := bus.get("url")) and not is_loopback(url.rpartition("/")[2].rpartition("@")[2]):
        away.append(f"NATS at {url}")
    if away:
        raise SettingsRefused(
            f"{path} names {away[0]}, which is not of a platform that `upcycle up` started in this folder",
            "remove the file; a platform elsewhere is named by UPCYCLE_PLATFORM_HOST or UPCYCLE_PEERS_*",
        )


def _state_text(path: Path) -> str:
    """It says where commands connect and which files hold their keys. "": there is none, or another user
    keeps it closed."""
    try:
        link = path.lstat()
        with path.open() as file:
            status = os.fstat(file.fileno())
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
    for owner in (link.st_uid, status.st_uid):
        if owner not in trusted_owners():
            raise SettingsRefused(
                f"{path} belongs to another user (uid {owner}), and commands here would follow it",
                "name a platform of yours, UPCYCLE_UP_DATA_DIR, or theirs, UPCYCLE_PEERS_*",
            )
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        raise SettingsRefused(
            f"{path} can be changed by other users (mode {mode:04o}), and commands here would follow it",
            f"chmod go-w {path}, if its content is right",
        )
    return text


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Platform:
    """Stubs of the public gRPC services: `async with Platform() as p: await p.tasksets.ListRuns(…)`. A call
    that fails leaves the block as Unavailable or RemoteError."""

    tasksets: "TasksetServiceAsyncStub"
    trajectories: "TrajectoryServiceAsyncStub"
    training: "TrainingServiceAsyncStub"
    registry: "RegistryServiceAsyncStub"
    keys: "KeyServiceAsyncStub"
    secrets: "SecretServiceAsyncStub"
    audit: "Mapping[str, AuditServiceAsyncStub]"
    """By peer: each service that keeps a log of changes."""
    retention: "Mapping[str, RetentionServiceAsyncStub]"
    """By peer: each service that owns what grows."""

    def __init__(self, addresses: Addresses | None = None) -> None:
        self.addresses = addresses or find_addresses()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from upcycle.api.audit.v1.service_pb2_grpc import AuditServiceStub
        from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceStub
        from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
        from upcycle.api.retention.v1.service_pb2_grpc import RetentionServiceStub
        from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceStub
        from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
        from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
        from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
        from upcycle.rpc import connect  # imported here: grpc takes 100 ms that `--help` need not pay

        async def channel(peer: str) -> Any:
            address, key = self.addresses.peers[peer], self.addresses.platform_key(peer)
            return await self._open.enter_async_context(connect(address, api_key=key))

        tasksets = await channel("tasksets")
        self.tasksets, self.secrets = TasksetServiceStub(tasksets), SecretServiceStub(tasksets)
        self.trajectories = TrajectoryServiceStub(await channel("trajectories"))
        self.training = TrainingServiceStub(await channel("training"))
        registry = await channel("registry")
        self.registry, self.keys = RegistryServiceStub(registry), KeyServiceStub(registry)
        self.audit = {peer: AuditServiceStub(await channel(peer)) for peer in ("registry", "tasksets")}
        self.retention = {
            peer: RetentionServiceStub(await channel(peer)) for peer in ("trajectories", "tasksets")
        }
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from upcycle.rpc import remote_errors

        await self._open.aclose()
        for peer, address in self.addresses.peers.items():
            # gRPC's words where nothing listens, and where the host has no address
            if f"{address}: Failed to connect" in str(error) or f"errors resolving {address}" in str(error):
                variable = f"UPCYCLE_PEERS_{peer.upper()}"
                source = variable if variable in os.environ else self.addresses.source
                silent = f"{PEERS[peer]} does not answer at {address} ({source})"
                raise Unavailable(silent, hint="is `upcycle up` running?") from error
        remote_errors().__exit__(None, error, None)


@asynccontextmanager
async def connected(runtime: Platform | Addresses | None) -> AsyncIterator[Platform]:
    """An open platform as it is; else a platform for this block, at the given addresses or those found.
    Raises RuntimeRefused for a runtime that is no platform."""
    if runtime is None or isinstance(runtime, Addresses):
        async with Platform(runtime) as platform:
            yield platform
    elif isinstance(runtime, Platform):
        yield runtime
    else:
        from upcycle.runtimes import no_platform

        raise no_platform(runtime)
