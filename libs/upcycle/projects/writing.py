"""Writes a new project from the templates, whole or not at all. Nothing that exists is overwritten."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from upcycle.benchmarks.sheet_50.extra import need_extra
from upcycle.projects.errors import DemonstrationsFailed, ProjectRefused
from upcycle.tasks import MAX_TASKS

PRESETS: Final = ("blank", "incident", "mcp", "sheet")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PLACEHOLDER: Final = "my-agent"
_NAMES: Final[Mapping[str, str]] = {"gitignore": ".gitignore", "mcp.json": ".mcp.json"}
_BORROWED: Final[Mapping[str, tuple[str, ...]]] = {"mcp": ("incident/names.py", "incident/world.py")}
"""Templates of other presets that a preset takes as they are."""
_TEMPLATES: Final = files("upcycle.projects") / "templates"
_FILES: Final = "files.md"
"""The rows of AGENTS.md for the files that only one preset has."""
_SKILL: Final = ".agents/skills/upcycle-environment"
_SKILL_LINK: Final = ".claude/skills/upcycle-environment"
_ROWS: Final = "<!-- files of the preset -->\n"
DEMONSTRATIONS_LIMIT_S: Final = 600.0
_READING: Final = "--epochs 10 --batch 16 --learning-rate 3e-3 --observation-weight 0.2"
_SFT: Final[Mapping[str, str]] = {
    "blank": "--epochs 3 --batch 16 --learning-rate 3e-3",
    "incident": _READING,
    "mcp": _READING,
    "sheet": "--epochs 6 --batch 16 --learning-rate 2e-3 --observation-weight 0.5",
}
"""What a tiny model needs before its attempts at a task differ, with NUM_DEMONSTRATIONS."""
NUM_DEMONSTRATIONS: Final = 400
_GROUP: Final[Mapping[str, int]] = {"mcp": 1}
"""Attempts at each held-out task in the last command; in mcp each starts a server."""
_ATTEMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class NewProject:
    """What to write. folder: its last part is the name of the environment, of the model and of the tasksets.
    Raises ProjectRefused, and ExtraMissing for a preset whose packages are not installed."""

    folder: Path
    preset: str
    num_tasks: int
    num_held_out: int

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ProjectRefused(
                f"there is no preset {self.preset!r}", f"use {', '.join(PRESETS[:-1])} or {PRESETS[-1]}"
            )
        if not NAME.fullmatch(self.name):
            raise ProjectRefused(
                f"{self.name!r} is no name for a model", "use 1 to 64 of a-z, 0-9, '.', '_' and '-'"
            )
        if self.preset == "sheet":
            need_extra()
        for flag, count in (("--tasks", self.num_tasks), ("--held-out", self.num_held_out)):
            if not 0 < count <= MAX_TASKS:
                raise ProjectRefused(f"{flag} is {count}", f"use 1 to {MAX_TASKS}")

    @property
    def name(self) -> str:
        """Of the environment and of the model."""
        return self.folder.absolute().name


@contextmanager
def new_folder(project: NewProject) -> Iterator[Path]:
    """Yield a hidden folder beside the project's; at the end its files become the project's, so that an
    interrupted command leaves nothing. Raises ProjectRefused for a folder that is not empty."""
    folder = project.folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProjectRefused(f"{project.folder} exists and is not an empty folder", "name another one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
            yield Path(made)
            folder.mkdir(exist_ok=True)
            for path in Path(made).iterdir():
                path.replace(folder / path.name)
    except OSError as error:
        raise ProjectRefused(f"{project.folder} cannot be written: {error}") from error


def write_project(project: NewProject, folder: Path) -> list[str]:
    """Write the files into `folder`; their names, sorted."""
    written = _write_skill(folder)
    rows = (_TEMPLATES / project.preset / _FILES).read_text(encoding="utf-8")
    for source in _sources(project.preset):
        target = folder / _NAMES.get(source.name, source.name)
        text = source.read_text(encoding="utf-8").replace(_ROWS, rows)
        target.write_text(_filled(text, project), encoding="utf-8")
        written.append(target.name)
    return sorted(written)


def _write_skill(folder: Path) -> list[str]:
    """Instructions, a check script and examples where coding agents look for skills; one of them looks in a
    folder of its own, which gets a link."""
    target, link = folder / _SKILL, folder / _SKILL_LINK
    shutil.copytree(str(_TEMPLATES / "skill"), target, ignore=shutil.ignore_patterns("__pycache__"))
    link.parent.mkdir(parents=True)
    link.symlink_to(Path(os.path.relpath(target, link.parent)), target_is_directory=True)
    return [str(path.relative_to(folder)) for path in target.rglob("*") if path.is_file()]


def demonstrate(folder: Path, count: int) -> None:
    """Run the project's demonstrate.py in a process of its own. Raises DemonstrationsFailed."""
    command = [sys.executable, "demonstrate.py", str(count)]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=DEMONSTRATIONS_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DemonstrationsFailed(
            f"demonstrate.py did not end within {DEMONSTRATIONS_LIMIT_S:g} s", "ask for fewer"
        ) from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise DemonstrationsFailed(f"demonstrate.py failed: {said}")


def next_commands(project: NewProject) -> list[tuple[str, str]]:
    """The way from here, by SFT and GRPO, to a measured policy: each command with what it is for."""
    name, group = project.name, _GROUP.get(project.preset, _ATTEMPTS)
    return [
        ("upcycle play tasks.py", "play one task yourself"),
        ("upcycle models create model --tiny --text demonstrations.jsonl", "a tiny model that knows nothing"),
        (f"upcycle up --model {name} --model-dir model", "start the platform, in another terminal"),
        (
            f"upcycle train {name} --sft demonstrations.jsonl {_SFT[project.preset]}",
            "learn from the demonstrations (SFT)",
        ),
        ("upcycle train --config run.toml", "learn from rewards (GRPO), and promote what is better"),
        (
            f"upcycle eval tasks.py {name} --taskset {name}-held-out --group {group} --channel latest",
            "measure it",
        ),
    ]


def _sources(preset: str) -> Iterator[Traversable]:
    for folder in ("shared", preset):
        yield from (one for one in (_TEMPLATES / folder).iterdir() if one.is_file() and one.name != _FILES)
    yield from (_TEMPLATES / name for name in _BORROWED.get(preset, ()))


def _filled(text: str, project: NewProject) -> str:
    text = text.replace('Environment("incident")', f'Environment("{project.name}")')
    text = text.replace(_PLACEHOLDER, project.name)
    text = re.sub(r"^NUM_TRAIN = \d+$", f"NUM_TRAIN = {project.num_tasks}", text, flags=re.MULTILINE)
    return re.sub(r"^NUM_HELD_OUT = \d+$", f"NUM_HELD_OUT = {project.num_held_out}", text, flags=re.MULTILINE)
