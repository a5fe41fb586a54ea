"""torch is installed from locks, whichever of its builds this machine's indexes have."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.deploy.locks import FOLDER, locked, locked_for_images

ROOT = FOLDER.parent
VERSION = locked_for_images("torch.txt")["torch"]
SEVERAL = 5
"""PyPI has files for more systems and Pythons than these."""
FILES_WITH_INSTALLS = ("Makefile", "deploy/Dockerfile", "deploy/images/wheels.sh", "requirements/torch.sh")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder of wheels that has none yet."""
    (tmp_path / "index").mkdir()
    shutil.copy(FOLDER / "torch.sh", tmp_path)
    return tmp_path / "index"


def add(index: Path, version: str) -> str:
    """A wheel of torch; returns what a lock says of it."""
    wheel = index / f"torch-{version}-py3-none-any.whl"
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return f"torch=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def fetched(index: Path, of_pypi: str, for_cpus: str, what: str = "download") -> tuple[list[str], str]:
    """The files that torch.sh took from the folder with such locks, and what it said of a failure."""
    (index.parent / "torch.txt").write_text(of_pypi)
    (index.parent / "torch_cpu.txt").write_text(for_cpus)
    taken = index.parent / "taken"
    options = ("--dest", str(taken)) if what == "download" else ()
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        ["sh", str(index.parent / "torch.sh"), sys.executable, what, *options],
        env={**os.environ, **pip}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert bool(done.stderr) == (done.returncode != 0)
    return sorted(path.name for path in taken.glob("*")), done.stderr


def test_the_build_for_cpus_is_taken_where_it_is_found(index: Path) -> None:
    of_pypi, for_cpus = add(index, VERSION), add(index, f"{VERSION}+cpu")
    assert fetched(index, of_pypi, for_cpus) == ([f"torch-{VERSION}+cpu-py3-none-any.whl"], "")


def test_elsewhere_it_is_the_build_of_pypi(index: Path) -> None:
    of_pypi = add(index, VERSION)
    for_cpus = of_pypi.replace(VERSION, f"{VERSION}+cpu")
    assert fetched(index, of_pypi, for_cpus) == ([f"torch-{VERSION}-py3-none-any.whl"], "")


@pytest.mark.parametrize("changed", [VERSION, f"{VERSION}+cpu"])
def test_a_file_without_one_of_the_hashes_is_refused(index: Path, changed: str) -> None:
    """No other build is taken in its place."""
    entries = {
        VERSION: add(index, VERSION),
        f"{VERSION}+cpu": f"torch=={VERSION}+cpu --hash=sha256:{'0' * 64}\n",
    }
    if changed != VERSION:
        entries[changed] = add(index, changed)
    entries[changed] = re.sub("sha256:.*", f"sha256:{'1' * 64}", entries[changed])
    taken, said = fetched(index, *entries.values())
    assert taken == []
    assert "DO NOT MATCH THE HASHES" in said
    assert ("make lock TORCH_CPU_WHEELS" in said) == (changed != VERSION)


def test_a_torch_that_is_installed_already_stays(index: Path) -> None:
    assert fetched(index, f"torch=={VERSION} \\\n    --hash=sha256:{'0' * 64}\n", "", "install") == ([], "")


def test_one_torch_may_be_any_of_several_files_and_each_lock_is_hashed() -> None:
    pins = locked(
        "torch.txt", "torch_cpu.txt", "build.txt", "stand_in.txt", "image.txt", "run.txt", "dev.txt"
    )
    assert [name for (name, _), hashes in pins.items() if not hashes] == []
    assert len(pins["torch", VERSION]) > SEVERAL
    assert pins["torch", f"{VERSION}+cpu"]


@pytest.mark.parametrize("lock", ["torch.txt", "torch_cpu.txt"])
def test_no_package_is_in_two_locks_of_an_image(lock: str) -> None:
    """What is installed later would replace the version of what came before."""
    assert not locked_for_images("image.txt").keys() & locked_for_images(lock).keys()


@pytest.mark.parametrize("file", FILES_WITH_INSTALLS)
def test_nothing_is_installed_or_downloaded_from_a_lock_without_its_hashes(file: str) -> None:
    text = (ROOT / file).read_text().replace("\\\n", " ")
    commands = re.findall(r"(?:pip|PIP\)) [^;&|\n]*? -r [^;&|\n]*", text)
    assert commands
    assert [one for one in commands if "--require-hashes" not in one] == []
