"""`python -m upcycle.importers.verifiers`, run with the Python that has the library."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.packaging.venvs import clean_environment

LIBS: Final = Path(__file__).resolve().parents[3] / "libs"
NAME: Final = "sums_of_others"


def program(python: Path, folder: Path, *options: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(LIBS), str(folder)])
    return subprocess.Popen(
        [python, "-m", "upcycle.importers.verifiers", NAME, *options, "--until-stdin-closes"],
        cwd=folder,
        env={**clean_environment(), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def serving(python: Path, folder: Path, *options: str) -> Iterator[str]:
    """Its URL."""
    process = program(python, folder, *options)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        for line in process.stdout:
            if found := re.match(r"UPCYCLE_SERVE_PORT=(\d+)", line):
                yield f"tcp://127.0.0.1:{found[1]}"
                return
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
