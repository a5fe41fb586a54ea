"""How a SeaweedFS (`weed mini`) on the loopback is started, and when it is ready for authenticated writes.

Volume data is fsynced before an answer (`fs.configure -fsync`).
"""

import asyncio
import io
import shutil
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Final

from blob_store.classify import CAUGHT
from blob_store.client import PROBE_TIMEOUT, make_client
from blob_store.inner_ports import write_security
from blob_store.keys import StoreKey, key_of
from blob_store.provision import provision_bucket
from blob_store.rights import PROBE, write_rights
from local_stack.spec import Probe
from service_kit.child_environment import child_environment
from service_kit.groups import S3Settings
from service_kit.ports import LOOPBACK, free_ports, is_free
from upcycle.errors import Unavailable, UpcycleError

_SHELL_TIMEOUT_S: Final = 30.0
_ADMIN_GRPC_OFFSET: Final = 10_000
"""Its own worker looks for the admin's gRPC there, whatever the flags say."""
_MEMORY_LIMIT: Final = "512MiB"
"""Go's soft limit; without it the process was seen at 2.7 GB after a bulk load, with it at 364 MB."""


_NO_KEYS: Final[Mapping[str, StoreKey]] = MappingProxyType({})


class S3ServerError(UpcycleError):
    """weed is missing, did not start, or died."""

    kind = "s3_server"


@dataclass(frozen=True, slots=True)
class S3Ports:
    """Every port that `weed mini` listens on; all on the loopback."""

    s3: int
    s3_grpc: int
    master: int
    master_grpc: int
    volume: int
    volume_grpc: int
    filer: int
    filer_grpc: int
    admin: int
    admin_grpc: int

    @classmethod
    def pick(cls, s3: int = 0, *, avoid: Collection[int] = ()) -> "S3Ports":
        """Free ports; `s3` fixes the public one. avoid: ports promised to programs that do not listen yet."""
        names = [field.name for field in fields(cls)]
        ports = [port for port in free_ports(len(names) + len(avoid)) if port not in avoid]
        picked = [*ports[: len(names) - 2], *_admin_ports({*avoid, *ports})]
        return cls(**{**dict(zip(names, picked, strict=True)), **({"s3": s3} if s3 else {})})

    def flags(self) -> tuple[str, ...]:
        """As command line flags: `s3_grpc` is `-s3.port.grpc`."""
        flags: list[str] = []
        for field in fields(self):
            role, _, kind = field.name.partition("_")
            flags += [f"-{role}.port{'.' + kind if kind else ''}", str(getattr(self, field.name))]
        return tuple(flags)


@dataclass(frozen=True, slots=True)
class S3Command:
    """A program to run, and what its environment needs beside ours."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def s3_command(
    data_dir: Path,
    ports: S3Ports,
    settings: S3Settings,
    *,
    keys: Mapping[str, StoreKey] = _NO_KEYS,
    extra_args: Sequence[str] = (),
) -> S3Command:
    """Write `s3.json`, who may do what, into `data_dir` and return how to run the server; starts nothing.

    settings: with the key of the operator, who may do everything. keys: of services, by identity.
    """
    objects = data_dir / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    identities = data_dir / "s3.json"
    write_rights(identities, key_of(settings), keys, settings.bucket)
    argv = (
        weed_binary(),
        "-logtostderr",
        "mini",
        f"-dir={objects}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-s3.config={identities}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-master.telemetry=false",
        "-webdav=false",
        "-disableHttp",  # of master and filer, which know no keys: their parts speak gRPC
        "-admin.ui=false",
        *ports.flags(),
        *extra_args,
    )
    return S3Command(argv, {"GOMEMLIMIT": _MEMORY_LIMIT, **_home(data_dir)})


def _home(data_dir: Path) -> dict[str, str]:
    """Where the server's programs find what opens its inner ports to them, and to them alone."""
    write_security(data_dir / "home" / ".seaweedfs")
    return {"HOME": str(data_dir.absolute() / "home")}


def make_bucket_durable(data_dir: Path, ports: S3Ports, bucket: str) -> None:
    """Make the server of `data_dir` fsync what it stores in the bucket; kept across restarts. Raises
    S3ServerError."""
    script = f"lock\nfs.configure -locationPrefix=/buckets/{bucket}/ -fsync -apply\nunlock\nexit\n"
    master = f"-master={LOOPBACK}:{ports.master}.{ports.master_grpc}"
    filer = f"-filer={LOOPBACK}:{ports.filer}.{ports.filer_grpc}"
    done = subprocess.run(
        [weed_binary(), "shell", master, filer],
        input=script,
        capture_output=True,
        text=True,
        timeout=_SHELL_TIMEOUT_S,
        check=False,
        env=child_environment() | _home(data_dir),
    )
    if done.returncode != 0 or '"fsync":true' not in "".join(done.stdout.split()):
        said = (done.stdout + done.stderr)[-800:]
        raise S3ServerError(f"weed shell could not set fsync on {bucket}, exit {done.returncode}: {said}")


def weed_binary() -> str:
    """Path of `weed`. Raises S3ServerError."""
    beside_python = Path(sys.executable).parent / "weed"
    found = str(beside_python) if beside_python.exists() else shutil.which("weed")
    if found is None:
        raise S3ServerError("no weed beside Python nor on PATH; in a checkout: pip install ./libs '.[local]'")
    return found


def _admin_ports(avoid: AbstractSet[int]) -> tuple[int, int]:
    for port in sorted(free_ports(64)):  # the lowest, so that the neighbour is no port of the kernel's choice
        neighbour = port + _ADMIN_GRPC_OFFSET
        if neighbour < 65536 and is_free(neighbour) and avoid.isdisjoint((port, neighbour)):
            return port, neighbour
    raise S3ServerError(f"no free port whose neighbour {_ADMIN_GRPC_OFFSET} above it is free, too")


def takes_a_write(settings: S3Settings) -> bool:
    """Whether an authenticated write into the bucket works now."""
    client, pool = make_client(settings, timeout=PROBE_TIMEOUT)
    try:
        client.put_object(settings.bucket, PROBE, io.BytesIO(b"ready"), 5)
        client.remove_object(settings.bucket, PROBE)
    except CAUGHT:
        return False
    finally:
        pool.clear()
    return True


def s3_probe(data_dir: Path, settings: S3Settings, ports: S3Ports) -> Probe:
    """Ready when the bucket exists, is durable and takes a write; makes it so at the first start."""

    def check() -> str | None:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((LOOPBACK, ports.s3)) != 0:
                return f"nothing listens on {settings.endpoint}"
        try:
            if provision_bucket(settings, wait_s=5.0):
                make_bucket_durable(data_dir, ports, settings.bucket)
        except (Unavailable, S3ServerError) as error:
            return str(error)
        return None if takes_a_write(settings) else "does not take writes yet"

    async def probe() -> str | None:
        return await asyncio.to_thread(check)

    return probe
