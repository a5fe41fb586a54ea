"""What Linux tells about processes: children, memory, open files."""

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> list[int]:
    """The process and all of its descendants that live."""
    parents = {child: _parent(child) for child in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = [pid]
    for member in found:  # grows while it is read
        found += [child for child, parent in parents.items() if parent == member]
    return found


def memory_bytes(pid: int) -> int:
    """Resident memory; 0 for a process that ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def open_files(pid: int) -> int:
    """Open descriptors; 0 for a process that ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
