"""What the measurements ran on."""

import os
import platform
import subprocess
from pathlib import Path


def machine_line() -> str:
    """Processor, cores, memory, kernel, Python."""
    facts = [_processor(), f"{os.cpu_count()} cores", f"{_memory_gib():.0f} GiB"]
    return ", ".join([*facts, f"Linux {platform.release()}", f"Python {platform.python_version()}"])


def load() -> float:
    """Load average of the last minute; measured before a benchmark begins, so it is other people's."""
    return os.getloadavg()[0]


def commit() -> str:
    """The revision that is checked out, with a + where the tree differs from it; "" outside of git."""
    try:
        asked = ("git", "describe", "--always", "--dirty=+")
        return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
