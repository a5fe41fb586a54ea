"""The six commands that `upcycle init` prints lead to a policy that beats its start."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from upcycle.projects.writing import PRESETS

PROGRAMS = Path(sys.executable).parent
COMMAND_S = 3600.0
READY_S = 300.0
STOP_S = 120.0
PORT_OFFSET = 600


@pytest.mark.study
@pytest.mark.timeout(3 * COMMAND_S)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preset", PRESETS)
def test_they_lead_to_a_policy_that_beats_its_start(tmp_path: Path, preset: str, seed: int) -> None:
    name = "agent"
    printed = run(tmp_path, f"upcycle init {name} --preset {preset} --json")
    commands = json.loads(printed.splitlines()[-1])["commands"]
    assert len(commands) == 6
    play, create, up, learn, train, measure = commands
    folder = tmp_path / name
    run(folder, f"{play} --script player.py")
    run(folder, f"{create} --seed {seed}")
    with running(folder, f"{up} --port-offset {PORT_OFFSET}"):
        before = last(run(folder, f"{measure} --json"))
        run(folder, f"{learn} --seed {seed}")
        run(folder, f"{train} --seed {seed}")
        after = last(run(folder, f"{measure} --json"))
        gain = last(run(folder, f"upcycle compare {before['run_id']} {after['run_id']} --json"))
    success = gain["overall"]["success"]
    assert success["interval"]["low"] > 0, success


def last(printed: str) -> dict[str, Any]:
    """The last line of JSON lines."""
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def run(folder: Path, command: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=readers_environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def readers_environment() -> dict[str, str]:
    """With our programs on the path."""
    return {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


@contextmanager
def running(folder: Path, command: str) -> Iterator[None]:
    """`upcycle up`, as in a terminal of its own, until it is ready; Ctrl-C at the end."""
    log = folder / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=readers_environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        give_up_at = time.monotonic() + READY_S
        while "for development only" not in log.read_text(errors="replace"):
            is_late = process.poll() is not None or time.monotonic() > give_up_at
            assert not is_late, log.read_text(errors="replace")
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(STOP_S)
