"""A Harbor task directory: task.toml, instruction.md, environment/, tests/test.sh, solution/."""

import hashlib
import posixpath
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from upcycle.importers.errors import ImportRefused
from upcycle.importers.harbor.dockerfile import (
    ENGINE,
    ENGINE_WAY_OUT,
    Files,
    PlainImage,
    StoredFile,
    check_base,
    plain_image,
)

TEST: Final = "test.sh"
SOLVE: Final = "solve.sh"
MAX_BYTES: Final = 16 << 20
GRADE_S: Final = 45.0
"""A grade may take 50 s in the fleet."""
_SYSTEM: Final = frozenset(
    {"", "bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr"}
)


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image that a container engine builds, or has by name.

    name: of one that is pulled; empty: `context`, the files of environment/, is built. workdir: empty is the
    image's own. cpus, memory_mb: limits of the container; None is the engine's.
    """

    name: str
    context: Files
    workdir: str
    variables: Mapping[str, str]
    cpus: float | None
    memory_mb: int | None
    has_network: bool


@dataclass(frozen=True, slots=True)
class HarborTask:
    """tests and solution: by path in their folder; solution may be empty. content: a digest of all of it."""

    name: str
    family: str
    instruction: str
    image: PlainImage | ContainerImage
    tests: Files
    solution: Files
    verifier_s: float
    verifier_variables: Mapping[str, str]
    solution_variables: Mapping[str, str]
    content: str

    @property
    def variables(self) -> Mapping[str, str]:
        """Of each process in its place."""
        return self.image.variables


def read_task(folder: Path, *, ignore_run: bool = False, in_container: bool = False) -> HarborTask:
    """Raises ImportRefused, which names the file and what in it needs more than a folder, or than a
    container."""
    settings = _settings(folder / "task.toml")
    where = folder.name
    _check(settings, folder, where)
    files = _files(folder)
    tests = _below(files, "tests/")
    if TEST not in tests:
        raise ImportRefused(f"{where}: there is no tests/{TEST}", "it decides the reward")
    verifier, metadata = settings.get("verifier", {}), settings.get("metadata", {})
    context = _below(files, "environment/")
    if in_container:
        image: PlainImage | ContainerImage = _container_image(settings, context, where)
    else:
        image = _image(settings, context, where, ignore_run=ignore_run)
    return HarborTask(
        name=where,
        family=str(metadata.get("category") or "harbor"),
        instruction=_instruction(folder / "instruction.md"),
        image=image,
        tests=tests,
        solution=_below(files, "solution/"),
        verifier_s=min(float(verifier.get("timeout_sec", GRADE_S)), GRADE_S),
        verifier_variables=_literal(verifier.get("env", {}), f"{where}/task.toml: [verifier.env]"),
        solution_variables=_literal(
            settings.get("solution", {}).get("env", {}), f"{where}/task.toml: [solution.env]"
        ),
        content=_digest(files),
    )


def _settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ImportRefused(f"{path} cannot be read: {error.strerror}", "a Harbor task has one") from error
    except ValueError as error:
        raise ImportRefused(f"{path}: not TOML: {error}") from error


def _check(settings: Mapping[str, Any], folder: Path, where: str) -> None:
    environment, verifier = settings.get("environment", {}), settings.get("verifier", {})
    needs = {
        "has steps": settings.get("steps") or (folder / "steps").is_dir(),
        "has a docker-compose.yaml": any((folder / "environment").glob("docker-compose.y*ml")),
        "works on Windows": str(environment.get("os", "linux")) != "linux",
        "needs a GPU": environment.get("gpus"),
        "starts MCP servers": environment.get("mcp_servers"),
        "waits for a healthcheck": environment.get("healthcheck"),
        "is judged in a container of its own": verifier.get("environment")
        or verifier.get("environment_mode", "shared") != "shared",
        "collects files from services": verifier.get("collect"),
    }
    if said := next((what for what, is_so in needs.items() if is_so), ""):
        raise ImportRefused(f"{where} {said}, which is not played here", "play it with Harbor")


def _image(settings: Mapping[str, Any], context: Files, where: str, *, ignore_run: bool) -> PlainImage:
    environment = settings.get("environment", {})
    if named := environment.get("docker_image"):
        check_base(str(named), f"{where}/task.toml")
    dockerfile = context.get("Dockerfile")
    place = f"{where}/environment/Dockerfile"
    beside = {path: file for path, file in context.items() if path != "Dockerfile"}
    image = PlainImage()
    if dockerfile is not None and not named:
        image = plain_image(dockerfile.content.decode(), beside, place, ignore_run=ignore_run)
    if workdir := environment.get("workdir"):
        image.workdir = posixpath.normpath(posixpath.join("/", str(workdir)))
    image.variables |= _literal(environment.get("env", {}), f"{where}/task.toml: [environment.env]")
    for path in (image.workdir, *image.files):
        if path.split("/")[1] in _SYSTEM:
            raise ImportRefused(f"{where}: {path} is a place of the system: {ENGINE}", ENGINE_WAY_OUT)
    return image


def _container_image(settings: Mapping[str, Any], context: Files, where: str) -> ContainerImage:
    environment = settings.get("environment", {})
    name = str(environment.get("docker_image") or "")
    if not name and "Dockerfile" not in context:
        raise ImportRefused(
            f"{where}: there is neither an environment/Dockerfile nor a docker_image in task.toml",
            "a container is made from one of them",
        )
    memory = environment.get("memory_mb")
    return ContainerImage(
        name=name,
        context=context,
        workdir=str(environment.get("workdir") or ""),
        variables=_literal(environment.get("env", {}), f"{where}/task.toml: [environment.env]"),
        cpus=float(environment["cpus"]) if environment.get("cpus") else None,
        memory_mb=int(memory) if memory else None,
        has_network=bool(environment.get("allow_internet", True)),
    )


def _literal(values: Mapping[str, Any], where: str) -> dict[str, str]:
    for name, value in values.items():
        if "${" in str(value):
            raise ImportRefused(f"{where}: {name} takes {value!r} from your shell", "write its value")
    return {name: str(value) for name, value in values.items()}


def _instruction(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImportRefused(f"{path} cannot be read: {error}", "it is the prompt") from error
    if not text:
        raise ImportRefused(f"{path} is empty", "it is the prompt")
    return text


def _files(folder: Path) -> dict[str, StoredFile]:
    """Of environment, tests and solution, and what says what the task is."""
    found: dict[str, StoredFile] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if path.is_symlink():
            raise ImportRefused(f"{path} is a link", "put the file in its place")
        size += path.stat().st_size
        if size > MAX_BYTES:
            raise ImportRefused(
                f"{folder.name} has more than {MAX_BYTES} bytes", "its files are kept in memory"
            )
        is_executable = bool(path.stat().st_mode & 0o100)
        found[path.relative_to(folder).as_posix()] = StoredFile(path.read_bytes(), is_executable)
    return found


def _below(files: Files, prefix: str) -> Files:
    return {path.removeprefix(prefix): file for path, file in files.items() if path.startswith(prefix)}


def _digest(files: Files) -> str:
    sums = "\n".join(f"{path} {hashlib.sha256(file.content).hexdigest()}" for path, file in files.items())
    return hashlib.sha256(sums.encode()).hexdigest()[:16]
