"""A task in a folder that stands for its image: the paths of the image are below it.

Commands, and the text of files that are written there, name the image's paths; they are led below the folder,
and what is printed is led back. A file that is no text is written as it is.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from upcycle.importers.harbor.dockerfile import Files, PlainImage
from upcycle.importers.harbor.place import MAX_OUTPUT_CHARS, REWARDS, TaskPlace
from upcycle.importers.harbor.reading import HarborTask

_OWN: Final = ("app", "logs", "root", "solution", "tests")


class ImageFolder(TaskPlace):
    """One episode's folder."""

    def __init__(self, task: HarborTask, image: PlainImage, root: Path) -> None:
        super().__init__(task)
        self._image, self._root = image, root
        names = {*_OWN, image.workdir.split("/")[1], *(path.split("/")[1] for path in image.files)}
        alternatives = "|".join(sorted(map(re.escape, names)))
        self._paths = re.compile(rf"(?<![\w./~}}-])/(?:{alternatives})(?![\w.-])")
        self._place(image.workdir).mkdir(parents=True, exist_ok=True)
        self._write("/", {path.lstrip("/"): file for path, file in image.files.items()})
        for name in ("root", REWARDS.lstrip("/")):
            (root / name).mkdir(parents=True, exist_ok=True)

    def _run(self, command: str, variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
        there = {name: self._there(value) for name, value in variables.items()}
        kept = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(self._root / "root")}
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                ["/bin/bash", "-c", self._there(command)],
                cwd=self._place(self._image.workdir),
                env={**kept, **there},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4 * MAX_OUTPUT_CHARS))
            return status, said.read().decode(errors="replace").replace(str(self._root), "")

    def _replace(self, folder: str, files: Files) -> None:
        with suppress(FileNotFoundError):
            _remove(self._place(folder))
        self._place(folder).mkdir(parents=True)
        self._write(folder, files)

    def _content(self, path: str) -> str | None:
        place = self._place(path)
        return place.read_text() if place.is_file() else None

    def _write(self, folder: str, files: Files) -> None:
        for path, file in files.items():
            place = self._place(f"{folder}/{path}")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.write_bytes(self._there(file.content.decode()).encode())
            except UnicodeDecodeError:
                place.write_bytes(file.content)
            place.chmod(0o755 if file.is_executable else 0o644)

    def _place(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _there(self, text: str) -> str:
        """With the paths of this folder."""
        return self._paths.sub(lambda found: f"{self._root}{found[0]}", text)


@contextmanager
def in_a_folder(task: HarborTask, image: PlainImage) -> Iterator[ImageFolder]:
    """In a folder of its own, while the episode lasts."""
    with tempfile.TemporaryDirectory(prefix="harbor-") as folder:
        yield ImageFolder(task, image, Path(folder).resolve())


def _remove(path: Path) -> None:
    """A folder that an agent may have filled, or a link or file that it put there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
