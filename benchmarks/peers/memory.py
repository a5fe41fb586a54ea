"""Memory of this process, from the kernel. Used by our programs and by the peers': standard library only."""

from pathlib import Path


def resident_mib() -> float:
    """Resident memory now."""
    return _field("VmRSS")


def step_peak_mib() -> float:
    """The most that was ever resident."""
    return _field("VmHWM")


def _field(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
