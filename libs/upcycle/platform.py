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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from upcycle.errors import Unavailable, UpcycleError
from upcycle.user_settings.files import SettingsRefused, check_private, trusted_owners
from upcycle.user_settings.layers import Found, Layer, UserSettings

if TYPE_CHECKING:
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub
    from upcycle.api.retention.v1.service_pb2_grpc import RetentionServiceAsyncStub
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
    state_file: of the stack that they are of, where it runs here."""

    peers: Mapping[str, str]
    source: str
    gateway_key_file: Path | None = None
    state_file: Path | None = None
    operator_key_file: Path | None = None

    @property
    def gateway_url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"http://{self.peers['gateway']}/v1"

    def gateway_key(self) -> str:
        """UPCYCLE_API_KEY, or the key of a local stack, or that of the user's profile. Raises
        PlatformNotFound when there is none."""
        return self._key("UPCYCLE_API_KEY", self.gateway_key_file, "gateway", "gateway.key")

    def operator_key(self) -> str:
        """UPCYCLE_OPERATOR_KEY, or the key of a local stack, or that of the user's profile. Raises
        PlatformNotFound when there is none, SettingsRefused for a file that others can open."""
        if self.operator_key_file is not None and self.operator_key_file.exists():
            check_private(self.operator_key_file)
        return self._key("UPCYCLE_OPERATOR_KEY", self.operator_key_file, "operator", "operator.key")

    def _key(self, variable: str, file: Path | None, whose: str, name: str) -> str:
        found = UserSettings.read().find(f"keys.{variable}")
        if found.value and found.layer is Layer.ENVIRONMENT:
            return found.value
        if file is not None and file.exists():
            return file.read_text().strip()
        if found.value:
            return found.value
        raise PlatformNotFound(
            f"no key of the {whose} is known: {self.source} gives addresses only",
            f"set {variable}; `upcycle up` writes the key of a local platform to DATA_DIR/{name}",
        )


def find_addresses(start: Path | None = None, environ: Mapping[str, str] | None = None) -> Addresses:
    """Addresses from the environment and the project's file, else from the nearest running stack, else from
    the user's profile. Raises PlatformNotFound, SettingsRefused."""
    here = (start or Path.cwd()).absolute()
    settings = UserSettings.read(environ, here)
    near = settings.peers(Layer.ENVIRONMENT, Layer.PROJECT)
    if len(near) == len(PEERS):
        return _named(near)
    if (found := running_stack(here, settings)) is not None:
        path, state = found
        keys = [state.get("gateway_key_file"), state.get("operator_key_file")]
        gateway_key, operator_key = (Path(file) if file else None for file in keys)
        peers = {**state["peers"], **{peer: one.value for peer, one in near.items()}}
        return Addresses(peers, str(path), gateway_key, path, operator_key)
    named = settings.peers(*Layer)
    if len(named) == len(PEERS):
        return _named(named)
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


def _named(found: Mapping[str, Found]) -> Addresses:
    places = dict.fromkeys(_source(one) for one in found.values())
    return Addresses({peer: one.value for peer, one in found.items()}, ", ".join(places))


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
                return path, state
    return None


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
    retention: "Mapping[str, RetentionServiceAsyncStub]"
    """By peer: each service that owns what grows."""

    def __init__(self, addresses: Addresses | None = None) -> None:
        self.addresses = addresses or find_addresses()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
        from upcycle.api.retention.v1.service_pb2_grpc import RetentionServiceStub
        from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
        from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
        from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
        from upcycle.rpc import connect  # imported here: grpc takes 100 ms that `--help` need not pay

        peers = self.addresses.peers

        async def channel(peer: str) -> Any:
            return await self._open.enter_async_context(connect(peers[peer]))

        self.tasksets = TasksetServiceStub(await channel("tasksets"))
        self.trajectories = TrajectoryServiceStub(await channel("trajectories"))
        self.training = TrainingServiceStub(await channel("training"))
        self.registry = RegistryServiceStub(await channel("registry"))
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
