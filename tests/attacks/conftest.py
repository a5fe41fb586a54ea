"""The platform that is attacked: `upcycle up` as in somebody's terminal, on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.platform_recipes import EXAMPLE, MODEL, POLICY_DIR

UPCYCLE = Path(sys.executable).parent / "upcycle"
READY_S = 100.0
STOP_S = 60.0
PORT_OFFSET = 2600


@dataclass(frozen=True, slots=True)
class Attacked:
    """data_dir: of the platform. state: what it says of itself."""

    data_dir: Path
    state: dict[str, Any]


@pytest.fixture(scope="session")
def attacked() -> Iterator[Attacked]:
    """In a folder that everybody may enter, as pytest's own are not, and with an ordinary umask."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    data_dir = place / "up"
    command = (str(UPCYCLE), "up", "--data-dir", str(data_dir), "--model", MODEL)
    with (place / "up.log").open("wb") as log:
        process = subprocess.Popen(
            (*command, "--model-dir", str(POLICY_DIR), "--environments", str(EXAMPLE), "--json",
             "--port-offset", str(PORT_OFFSET)),
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=place, umask=0o022, env={**os.environ},
        )  # fmt: skip
    try:
        _until_ready(process, place / "up.log")
        yield Attacked(data_dir, json.loads((data_dir / "state.json").read_text()))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
        shutil.rmtree(place)


def _until_ready(process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_at = time.monotonic() + READY_S
    while '"ready"' not in (said := log.read_text()):
        assert process.poll() is None, said[-3000:]
        assert time.monotonic() < give_up_at, said[-3000:]
        time.sleep(0.1)
