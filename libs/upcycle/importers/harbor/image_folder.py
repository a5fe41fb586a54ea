"""A task in a folder that stands for its image: the paths of the image are below it.

Commands, and the text of files that are written there, name the image's paths; they are led below the folder,
and what is printed is led back. A file that is no text is written as it is.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from upcycle.importers.harbor.dockerfile import Files
from upcycle.importers.harbor.reading import TEST, HarborTask

SHELL_S: Final = 25.0
"""A call of a tool may take 30 s."""
MAX_OUTPUT_CHARS: Final = 16_000
_OWN: Final = ("app", "logs", "root", "solution", "tests")
_REWARDS: Final = "logs/verifier"
_KEY: Final = "reward"


class ImageFolder:
    """One episode's folder."""

    def __init__(self, task: HarborTask, root: Path) -> None:
        self._task, self._root = task, root
        names = {*_OWN, task.image.workdir.split("/")[1], *(path.split("/")[1] for path in task.image.files)}
        alternatives = "|".join(sorted(map(re.escape, names)))
        self._paths = re.compile(rf"(?<![\w./~}}-])/(?:{alternatives})(?![\w.-])")
        self._place(task.image.workdir).mkdir(parents=True, exist_ok=True)
        self._write("/", {path.lstrip("/"): file for path, file in task.image.files.items()})
        for name in ("root", _REWARDS):
            (root / name).mkdir(parents=True, exist_ok=True)

    def shell(self, command: str) -> str:
        """The end of what it prints, and how it ended."""
        status, said = self._run(command, self._task.image.variables, SHELL_S)
        ended = f"not over within {SHELL_S:g} s" if status is None else f"exit status {status}"
        return f"{said[-MAX_OUTPUT_CHARS:]}\n({ended})"

    def verdict(self) -> Mapping[str, Any]:
        """Put the tests in their place, run them, and read the reward. Raises RuntimeError where they write
        none, or are not over in time."""
        task = self._task
        for name in ("tests", _REWARDS):
            with suppress(FileNotFoundError):
                _remove(self._root / name)
        (self._root / _REWARDS).mkdir(parents=True)
        self._write("/tests", task.tests)
        variables = {**task.image.variables, **task.verifier_variables}
        status, said = self._run(f"bash /tests/{TEST}", variables, task.verifier_s)
        if status is None:
            raise RuntimeError(f"tests/{TEST} was not over within {task.verifier_s:g} s")
        return {**self._rewards(status, said), "content": said[-2000:]}

    def _rewards(self, status: int, said: str) -> Mapping[str, Any]:
        folder = self._root / _REWARDS
        try:
            if (folder / "reward.json").is_file():
                values = json.loads((folder / "reward.json").read_text())
                reward = values[_KEY] if _KEY in values or len(values) != 1 else next(iter(values.values()))
                others = {name: value for name, value in values.items() if name != _KEY}
                return {"score": _number(reward), "info": {"rewards": others} if others else {}}
            return {"score": _number((folder / "reward.txt").read_text())}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"tests/{TEST} ended with status {status} and wrote no reward to /{_REWARDS} ({error!r:.120})"
                f": {said[-500:]}"
            ) from error

    def _run(self, command: str, variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
        """Status, None where it was not over; and what it printed, with the image's paths."""
        there = {name: self._there(value) for name, value in variables.items()}
        kept = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": str(self._root / "root")}
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                ["/bin/bash", "-c", self._there(command)],
                cwd=self._place(self._task.image.workdir),
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
def opened(task: HarborTask) -> Iterator[ImageFolder]:
    """In a folder of its own, while the episode lasts."""
    with tempfile.TemporaryDirectory(prefix="harbor-") as folder:
        yield ImageFolder(task, Path(folder).resolve())


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no reward")
    return number


def _remove(path: Path) -> None:
    """A folder that an agent may have filled, or a link or file that it put there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
