"""verifiers 0.1.14 and 0.4.0, each in an environment of its own, and an environment for it.

Installing takes a minute or two where the wheels are not on this machine yet.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.contract.verifiers.environments import CLASSIC, TASKSETS
from tests.contract.verifiers.programs import NAME
from tests.packaging.venvs import clean_environment

MODULES: Final = {"0.1.14": CLASSIC, "0.4.0": TASKSETS}


@pytest.fixture(scope="module", params=sorted(MODULES))
def served_version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(served_version: str, pytestconfig: pytest.Config) -> Path:
    """Of an environment with this version of verifiers."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("verifiers") / served_version
    program = folder / "bin" / "python"
    if not (folder / "complete").exists():
        uv = [sys.executable, "-m", "uv"]
        install = [*uv, "pip", "install", "-q", "--python", str(program), f"verifiers=={served_version}"]
        for command in ([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)], install):
            subprocess.run(command, check=True, timeout=800, env=clean_environment())
        (folder / "complete").touch()
    return program


@pytest.fixture
def folder(tmp_path: Path, served_version: str) -> Path:
    """With the environment as a module."""
    (tmp_path / f"{NAME}.py").write_text(MODULES[served_version])
    return tmp_path
