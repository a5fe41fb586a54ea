"""The last released version, built from this repository's history and installed in a folder of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
RECORD: Final = Path(__file__).parent / "last_release.txt"
"""`<tag> <commit>`: a clone may have no tags."""
_BUILD_S: Final = 600.0


class ReleaseMissing(AssertionError):
    """This clone does not hold the released version, so nothing can be said about an upgrade."""


@dataclass(frozen=True, slots=True)
class Release:
    """A released version that programs can import."""

    tag: str
    folder: Path
    """First on PYTHONPATH, it hides today's code."""
    source: Path
    """Its repository, with the examples of its time."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a process that runs this version."""
        return {"PYTHONPATH": str(self.folder)}

    def settings_added_since(self) -> frozenset[str]:
        """Variables that this version would refuse: today's reference has them, that of its time has not."""
        return _settings_of(REPOSITORY) - _settings_of(self.source)


def released() -> tuple[str, str]:
    """Tag and commit of the last release. Raises ReleaseMissing when they are absent or disagree."""
    tag, commit = RECORD.read_text().split()
    tagged = _git("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}")
    if tagged and tagged != commit:
        raise ReleaseMissing(
            f"tag {tag} is commit {tagged}, but {RECORD.name} says {commit}: correct the file"
        )
    if not tagged and _git("cat-file", "-t", commit) != "commit":
        raise ReleaseMissing(
            f"neither tag {tag} nor its commit {commit} is in this clone: git fetch --tags --unshallow"
        )
    return tag, commit


def build(folder: Path) -> Release:
    """Build both wheels of the last release and install them below `folder`, without their dependencies:
    those of today are used. Raises ReleaseMissing, CalledProcessError, TimeoutExpired."""
    tag, commit = released()
    source, wheels, installed = folder / "source", folder / "wheels", folder / tag
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=REPOSITORY, check=True, capture_output=True, timeout=_BUILD_S
    )
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True, timeout=_BUILD_S)
    _pip("wheel", "--no-build-isolation", "-w", str(wheels), str(source / "libs"), str(source))
    built = sorted(str(wheel) for wheel in wheels.glob("*.whl"))
    _pip("install", "--no-compile", "--target", str(installed), *built)
    return Release(tag, installed, source)


def version_path(environment: Mapping[str, str]) -> Path:
    """Where a program with this environment finds the planner's code."""
    answer = subprocess.run(
        [sys.executable, "-c", "import scenario_runner; print(scenario_runner.__file__)"],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
    )
    return Path(answer.stdout.strip())


def _settings_of(repository: Path) -> frozenset[str]:
    page = (repository / "docs" / "reference" / "settings.md").read_text()
    return frozenset(re.findall(r"^\| `([A-Z0-9_]+)` \|", page, re.MULTILINE))


def _pip(command: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", command, "-q", "--no-deps"]
    subprocess.run([*pip, *arguments], check=True, timeout=_BUILD_S)


def _git(*arguments: str) -> str:
    """What it prints; empty when it refuses."""
    answer = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=_BUILD_S
    )
    return answer.stdout.strip()
