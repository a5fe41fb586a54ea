"""How long a process stood in the queue for a processor: on a busy machine that is no fault of its own."""

from pathlib import Path


def starved_s(pid: int) -> float:
    """Seconds in which the first thread of a process could run and had no processor; 0 where the system does
    not say (no Linux), or the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
