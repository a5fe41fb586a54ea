"""A task in a container of its image, by the program of a container engine: docker or podman.

An image has the digest of its task's environment/ in its name, so that a folder that changes is built anew. A
container ends with its episode; where that was killed, by itself after `LIFETIME_S`.
"""

import hashlib
import io
import math
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from upcycle.importers.errors import ImportRefused
from upcycle.importers.harbor.dockerfile import Files
from upcycle.importers.harbor.place import MAX_OUTPUT_CHARS, TaskPlace
from upcycle.importers.harbor.reading import ContainerImage, HarborTask

ENGINES: Final = ("docker", "podman")
LABEL: Final = "upcycle.harbor"
LIFETIME_S: Final = 25 * 3600
"""Longer than any episode."""
BUILD_S: Final = 1800.0
_ENGINE_S: Final = 25.0
"""For what the engine does by itself: start, copy, remove."""
_MORE_S: Final = 5.0
"""The program of the engine may take so much longer than the command in the container."""
_MAX_PIDS: Final = "1024"
_KILLED: Final = 137
_MISSING: Final = 125


def installed_engine(name: str) -> str:
    """Path of its program. Raises ImportRefused."""
    if name not in ENGINES:
        raise ImportRefused(f"engine={name!r} is no container engine", f"name one of {', '.join(ENGINES)}")
    program = shutil.which(name)
    if program is None:
        raise ImportRefused(
            f"there is no program {name!r} on this machine", "install it, or leave engine out"
        )
    return program


def image_name(image: ContainerImage) -> str:
    """The one in task.toml, or that of its build."""
    if image.name:
        return image.name
    digest = hashlib.sha256()
    for path, file in image.context.items():
        digest.update(f"{path}\n{file.is_executable}\n{len(file.content)}\n".encode() + file.content)
    return f"upcycle-harbor:{digest.hexdigest()[:24]}"


def build(image: ContainerImage, engine: str) -> str:
    """Build or pull an image, unless the engine has it; its name. Raises ImportRefused with the engine's last
    words."""
    name = image_name(image)
    if _asked([engine, "image", "inspect", name]).returncode == 0:
        return name
    with tempfile.TemporaryDirectory(prefix="harbor-image-") as folder:
        for path, file in image.context.items():
            place = Path(folder) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(0o755 if file.is_executable else 0o644)
        make = (
            ["pull", "-q", name]
            if image.name
            else ["build", "-q", "--force-rm", "--label", LABEL, "-t", name, folder]
        )
        made = _asked([engine, *make], limit_s=BUILD_S)
    if made.returncode != 0:
        raise ImportRefused(f"the image was not made: {_last_lines(made)}", "see its Dockerfile")
    return name


class TaskContainer(TaskPlace):
    """One episode's container."""

    def __init__(self, task: HarborTask, image: ContainerImage, engine: str, container: str) -> None:
        super().__init__(task)
        self._image, self._engine, self._container = image, engine, container

    def _run(self, command: str, variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
        options = [one for name, value in variables.items() for one in ("--env", f"{name}={value}")]
        if self._image.workdir:
            options += ["-w", self._image.workdir]
        # Ended in the container: to kill the engine's program would leave the command running there.
        limited = ["timeout", "-s", "KILL", f"{limit_s:g}", "bash", "-c", command]
        began = time.monotonic()
        with tempfile.TemporaryFile() as said:
            ended = _asked(
                [self._engine, "exec", *options, self._container, *limited],
                limit_s=limit_s + _MORE_S,
                output=said,
            )
            is_over = ended.returncode != _KILLED or time.monotonic() - began < limit_s
            said.seek(max(0, said.seek(0, io.SEEK_END) - 4 * MAX_OUTPUT_CHARS))
            return ended.returncode if is_over else None, said.read().decode(errors="replace")

    def _replace(self, folder: str, files: Files) -> None:
        _checked([self._engine, "exec", self._container, "rm", "-rf", folder], self._task)
        copy = [self._engine, "cp", "-", f"{self._container}:/"]
        _checked(copy, self._task, given=_packed(folder, files))

    def _content(self, path: str) -> str | None:
        copied = _asked([self._engine, "cp", f"{self._container}:{path}", "-"])
        if copied.returncode != 0:
            return None
        with tarfile.open(fileobj=io.BytesIO(copied.stdout)) as packed:
            file = packed.extractfile(packed.getmembers()[0])
            return None if file is None else file.read().decode()


@contextmanager
def in_a_container(task: HarborTask, image: ContainerImage, engine: str) -> Iterator[TaskContainer]:
    """In a container of its own, while the episode lasts. Raises RuntimeError where it does not start."""
    name = image_name(image)
    limits = ["--pids-limit", _MAX_PIDS, "--security-opt", "no-new-privileges"]
    limits += [] if image.cpus is None else ["--cpus", f"{image.cpus:g}"]
    limits += [] if image.memory_mb is None else ["--memory", f"{image.memory_mb}m"]
    limits += [] if image.has_network else ["--network", "none"]
    # never pulled here: that may take longer than an episode has for its beginning
    run = [engine, "run", "-d", "--rm", "--init", "--pull", "never", "--label", LABEL, *limits]
    started = _asked([*run, "--entrypoint", "sleep", name, str(LIFETIME_S)])
    if started.returncode == _MISSING and _lacks(engine, name):
        raise RuntimeError(
            f"the engine has no image {name} of task {task.name!r}: "
            "python -m upcycle.importers.harbor FOLDER builds it"
        )
    if started.returncode != 0:
        raise RuntimeError(f"no container of task {task.name!r}: {_last_lines(started)}")
    container = started.stdout.decode().strip()
    try:
        yield TaskContainer(task, image, engine, container)
    finally:
        _asked([engine, "rm", "-f", container])


def _lacks(engine: str, image: str) -> bool:
    """Of an engine that answers: one that does not has no image either, and none can be built."""
    answers = _asked([engine, "version"]).returncode == 0
    return answers and _asked([engine, "image", "inspect", image]).returncode != 0


def _asked(
    command: Sequence[str], *, given: bytes = b"", limit_s: float = _ENGINE_S, output: IO[bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """What the engine's program said. output: where both streams of it go, in place of the result."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    where = streams if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
    try:
        return subprocess.run(command, input=given, timeout=limit_s, check=False, **where)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"`{' '.join(command[:2])}` was not over within {math.ceil(limit_s)} s") from error


def _checked(command: Sequence[str], task: HarborTask, given: bytes = b"") -> None:
    done = _asked(command, given=given)
    if done.returncode != 0:
        raise RuntimeError(f"the container of task {task.name!r} is lost: {_last_lines(done)}")


def _last_lines(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stderr or done.stdout or b"").decode(errors="replace").strip()[-500:]


def _packed(folder: str, files: Files) -> bytes:
    """A tar of the folder and these files, from the root."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        made = tarfile.TarInfo(folder.lstrip("/"))
        made.type, made.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(made)
        for path, file in files.items():
            entry = tarfile.TarInfo(f"{folder.lstrip('/')}/{path}")
            entry.size, entry.mode = len(file.content), 0o755 if file.is_executable else 0o644
            tar.addfile(entry, io.BytesIO(file.content))
    return packed.getvalue()
