"""A leashed child dies with its parent, however the parent dies."""

import os
import subprocess
import sys
import time
from pathlib import Path

from service_kit.leash import leashed

PARENT = """
import subprocess, sys, time
from service_kit.leash import leashed
child = subprocess.Popen(leashed(["sleep", "600"]), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert _runs(child)

    parent.kill()
    parent.wait()

    give_up_at = time.monotonic() + 30
    while _runs(child) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert not _runs(child)


def test_it_becomes_the_program_with_its_arguments_and_status() -> None:
    done = subprocess.run(
        leashed(["sh", "-c", 'echo "$0 $1"; exit 7', "one", "two words"]),
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (7, "one two words\n")


def test_a_child_that_was_orphaned_before_it_could_ask_gives_up() -> None:
    argv = list(leashed(["sleep", "600"]))
    argv[argv.index(str(os.getpid()))] = "1"

    assert subprocess.run(argv, timeout=60, check=False).returncode == 125


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
