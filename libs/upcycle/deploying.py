"""Environments made ready to be sent to a platform: what goes into the pack, and what stays here.

The pack is what a run packs at its submission: the environment's file, the modules beside it that it imports,
its declared data. Files that look like keys stay here, and are named.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from upcycle.environment.deployed import MAX_PACKED_BYTES, deployed_path
from upcycle.environment.source_files import SourceFiles, largest_files, read_source
from upcycle.environment.source_pack import pack_source
from upcycle.errors import UpcycleError
from upcycle.tasks import Taskset

if TYPE_CHECKING:
    from upcycle.environment.core import Environment
    from upcycle.platform import Platform

ENTRY: Final = "env.py"
_NAMED: Final = 5
"""Files of a folder without one that a refusal names."""
DEPLOY_TIMEOUT_S: Final = 180.0
"""The platform loads the environment before it answers."""
_SECRETS: Final = (
    ".env", ".env.*", "*.env", ".netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials", "credentials",
    "credentials.json", "credentials.toml", "secrets.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx",
    "*.jks", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
)  # fmt: skip
_SECRET_FOLDERS: Final = (".aws", ".ssh", ".gnupg", ".git")
_SHOWN: Final = (".env.example", ".env.sample", ".env.template", "*.py", "*.pyi")
"""What looks like the ones above and holds no key."""


class DeployRefused(UpcycleError, ValueError):
    """There is no environment that can be sent, or the platform does not take it."""

    kind = "deploy_refused"


@dataclass(frozen=True, slots=True)
class PackedEnvironment:
    """What is sent. left_out: files that look like keys, by path relative to the environment's folder."""

    name: str
    files: SourceFiles
    packed: bytes
    left_out: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of the source that is sent."""
        return self.files.digest

    @property
    def num_bytes(self) -> int:
        """Of its files, unpacked."""
        return sum(map(len, self.files.files.values()))


@dataclass(frozen=True, slots=True)
class Deployed:
    """path: what stands in a tasks file in the place of the path of the environment's file."""

    path: str
    scenarios: tuple[str, ...]


def environment_file(place: Path) -> Path:
    """The file that declares the environment: `place`, or env.py in it. Raises DeployRefused."""
    if place.is_dir():
        if not (place / ENTRY).is_file():
            found = sorted(one.name for one in place.glob("*.py"))
            more = ", …" if len(found) > _NAMED else ""
            said = f"it has {', '.join(found[:_NAMED])}{more}" if found else "it has no Python file"
            raise DeployRefused(
                f"{place.absolute()} has no {ENTRY}: {said}", "name the file: upcycle deploy FILE"
            )
        return place / ENTRY
    if not place.exists():
        raise DeployRefused(f"no such file or folder: {place}", "name the file that declares the Environment")
    if place.suffix != ".py" or not place.is_file():
        raise DeployRefused(f"{place} is no Python file", "name the file that declares the Environment")
    return place


def package(environment: "Environment", file: Path, max_bytes: int = MAX_PACKED_BYTES) -> PackedEnvironment:
    """Pack a loaded environment. Raises DeployRefused, and SourceRefused, which names the file."""
    if not environment.scenarios:
        raise DeployRefused(
            f"{file}: environment {environment.name!r} declares no scenario", "there is nothing to play yet"
        )
    source = read_source(file)
    secret = {name for name in source.files if looks_secret(name)}
    kept = {name: content for name, content in source.files.items() if name not in secret}
    _check_data(environment, source, kept)
    files = replace(source, files=kept)
    packed = pack_source(files)
    if len(packed) > max_bytes:
        raise DeployRefused(
            f"{file}: packed, it has {len(packed):,} bytes, limit {max_bytes:,}; its largest files: "
            f"{largest_files(kept)}",
            "leave large data out, and have the scenario read it from a store",
        )
    return PackedEnvironment(environment.name, files, packed, tuple(sorted(secret | _beside(source))))


def looks_secret(name: str) -> bool:
    """Whether a path, relative and in POSIX form, is one that files with keys have."""
    path = PurePosixPath(name.lower())
    if any(part in _SECRET_FOLDERS for part in path.parts[:-1]):
        return True
    return _matches(path.name, _SECRETS) and not _matches(path.name, _SHOWN)


def as_deployed(taskset: Taskset, source_digest: str) -> Taskset:
    """The same tasks, of the environment as it was sent. Raises SourceRefused for what is no digest."""
    environment = replace(taskset.environment, path=deployed_path(source_digest), url="")
    tasks = [replace(task, environment=environment) for task in taskset]
    return Taskset(taskset.name, tasks, taskset.split)


async def deploy(platform: "Platform", package: PackedEnvironment) -> Deployed:
    """Send it, with the key of the platform's client. Raises DeployRefused for a key that is not the
    operator's and for a platform that takes no environments; RemoteRefused with what loading it
    there raised."""
    from upcycle.api.taskset.v1.service_pb2 import DeployEnvironmentRequest
    from upcycle.rpc import RemoteDenied, RemoteRefused, remote_errors

    request = DeployEnvironmentRequest(name=package.name, source_digest=package.digest, packed=package.packed)
    try:
        with remote_errors(f"deploy environment {package.name!r}"):
            answer = await platform.tasksets.DeployEnvironment(request, timeout=DEPLOY_TIMEOUT_S)
    except RemoteDenied as error:
        hint = "UPCYCLE_OPERATOR_KEY, or operator.key in the data folder of `upcycle up`, has the key"
        raise DeployRefused(error.message, hint) from error
    except RemoteRefused as error:
        if error.code.name == "UNIMPLEMENTED":
            raise DeployRefused(
                "the platform is of a version that takes no environments", "upgrade its scenario runner"
            ) from error
        raise
    return Deployed(answer.environment.python.path, tuple(answer.scenarios))


def _check_data(environment: "Environment", source: SourceFiles, kept: Mapping[str, bytes]) -> None:
    """Raises DeployRefused for a declared data of which nothing is left: the environment would not load."""
    folder = PurePosixPath(Path(environment.source).resolve().parent.relative_to(source.root).as_posix())
    for data in environment.data:
        wanted = PurePosixPath(_normal(folder / data))
        had = [name for name in source.files if PurePosixPath(name).is_relative_to(wanted)]
        if had and not any(name in kept for name in had):
            raise DeployRefused(
                f"{environment.source}: data {data!r} looks like a file with keys, which is not packed",
                "have the environment read it from a variable (SCENARIO_RUNNER_ENVIRONMENT_VARIABLES)",
            )


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts) or "."


def _beside(source: SourceFiles) -> set[str]:
    """Files that look like keys beside the environment's own: they are no part of it, and it is said."""
    folder = (source.root / source.entry).parent
    names = (one.relative_to(source.root).as_posix() for one in folder.iterdir() if one.is_file())
    return {name for name in names if looks_secret(name)}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
