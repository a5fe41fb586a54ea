"""Wheels of both distributions, and empty environments that they are installed into."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = {"upcycle": ROOT / "libs", "upcycle-platform": ROOT}
INSTALL_LIMIT_S = 600


def run(*command: str | Path, cwd: Path | None = None, limit_s: float = 60) -> str:
    """What a program prints; an AssertionError with all that it said when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Ours without what would lead a program to this checkout or to a running platform."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "UPCYCLE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def build_wheel(name: str, folder: Path) -> Path:
    """The wheel of one distribution, from the files of the checkout."""
    out = folder / name
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=PROJECTS[name], limit_s=100)
    (wheel,) = out.glob("*.whl")
    return wheel


def locked_versions(folder: Path) -> Path:
    """requirements/run.txt as constraints: without the hashes, which a local wheel does not have."""
    lines = (ROOT / "requirements" / "run.txt").read_text().splitlines()
    pins = [line.removesuffix(" \\") for line in lines if re.match(r"[\w.-]+==", line)]
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins) + "\n")
    return path


def environment(wheels: Sequence[Path], cache: Path, *, python: str = sys.executable) -> Path:
    """The `bin` folder of an environment that holds the wheels and what they need, and nothing else.

    What the wheels need is installed once per set of requirements, the wheels themselves where their content
    changed: one worker at a time, so that none replaces what another one runs.
    """
    known = [(project / "pyproject.toml").read_bytes() for project in PROJECTS.values()]
    known += [(ROOT / "requirements" / "run.txt").read_bytes(), python.encode(), str(len(wheels)).encode()]
    folder = cache / hashlib.sha256(b"\0".join(known)).hexdigest()[:16]
    content = hashlib.sha256(b"\0".join(wheel.read_bytes() for wheel in wheels)).hexdigest()
    installed = folder / "installed"
    with held(cache / f"{folder.name}.lock"):
        if not installed.exists() or installed.read_text() != content:
            is_new = not installed.exists()
            installed.unlink(missing_ok=True)  # what is interrupted is made anew
            _install(wheels, folder, python, is_new=is_new)
            installed.write_text(content)
    return folder / "bin"


def _install(wheels: Sequence[Path], folder: Path, python: str, *, is_new: bool) -> None:
    """`pip` installs for our own Python; for the others `uv`, which resolves the same metadata in a tenth of
    the time."""
    is_ours = python == sys.executable and len(wheels) == 1
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", *([] if is_ours else ["--without-pip"]), folder)
        how: list[str | Path] = ["-c", locked_versions(folder)]
    else:
        how = ["--no-deps", "--force-reinstall" if is_ours else "--reinstall"]
    run(*_installer(folder, is_ours=is_ours), *how, *wheels, limit_s=INSTALL_LIMIT_S)


def _installer(folder: Path, *, is_ours: bool) -> list[str | Path]:
    program = folder / "bin" / "python"
    if is_ours:
        return [program, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check"]
    return [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", program]


@contextmanager
def held(lock: Path, limit_s: float = INSTALL_LIMIT_S + 120) -> Iterator[None]:
    """One process at a time. Raises TimeoutError."""
    give_up_at = time.monotonic() + limit_s
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"another process held {lock} for {limit_s:g} s") from None
                time.sleep(0.1)
        yield


@functools.cache
def python_of(version: str) -> str | None:
    """A Python of this version on this machine that starts; None where there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named: list[str | Path | None] = [
        shutil.which(f"python{version}"),
        *versions.glob(f"{version}.*/bin/python{version}"),
    ]
    for program in named:
        if program is None:
            continue
        if subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(program)
    return None
