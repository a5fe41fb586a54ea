"""Another login of the machine."""

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

STRANGER: Final = 65534
as_stranger = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


def read_as_stranger(folder: Path) -> list[str]:
    """What `find` finds that another user can read."""
    done = subprocess.run(
        ["/usr/bin/find", str(folder), "-readable"],
        user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    return done.stdout.splitlines()
