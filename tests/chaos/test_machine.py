"""Full disks and jumping clocks, where this machine can have them."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.machine import Clocks, Disks, FullDisk, JumpedClock

_PROGRAM = "import time; t = time.monotonic(); time.sleep(0.01); print(time.time(), time.monotonic() - t)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disks = Disks()
    if (why_not := disks.why_not()) is not None:
        pytest.skip(why_not)
    try:
        disks.mount(tmp_path / "disk")
        yield tmp_path / "disk"
    finally:
        disks.unmount()


async def test_a_full_disk_takes_nothing_until_it_is_healed(disk: Path) -> None:
    fault = FullDisk(disk)
    await fault.inject()
    with pytest.raises(OSError, match="No space left on device"):
        (disk / "one").write_bytes(b"x" * 8192)
    await fault.heal()
    assert (disk / "two").write_bytes(b"x" * 8192) == 8192


async def test_a_clock_is_off_by_the_drawn_part_of_an_hour_and_right_again(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path / "clocks")
    if (why_not := clocks.why_not()) is not None:
        pytest.skip(why_not)
    environment = {**os.environ, **clocks.environment("planner")}
    fault = JumpedClock(clocks, "planner", draw=0.75)  # half an hour ahead

    def off_by_s() -> float:
        said = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        wall, slept = map(float, said.stdout.split())
        assert 0 < slept < 600, "its monotonic clock does not jump"
        return wall - time.time()

    await fault.inject()
    assert 1200 < off_by_s() < 1860
    await fault.heal()
    assert -600 < off_by_s() < 60


def test_what_a_machine_cannot_do_is_named(tmp_path: Path) -> None:
    assert Clocks(tmp_path, library=None).why_not() == "libfaketime is not installed (Debian: libfaketime)"
    assert Clocks(tmp_path, library=None).environment("planner") == {}
