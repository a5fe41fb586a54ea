"""Processor time of processes, with all that they started: children that run, and those that ended."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local_stack.stack import Stack

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)
"""In /proc/PID/stat after the name: user and system time, its own and of children that it waited for."""


def by_process(stack: Stack) -> dict[str, float]:
    """Seconds of each process of a stack so far."""
    table = _table()
    return {one.name: _with_descendants(one.pid, table) for one in stack.processes if one.pid}


def of_process(pid: int) -> float:
    """Seconds of one process so far, with all that it started."""
    return _with_descendants(pid, _table())


def spent(before: Mapping[str, float], after: Mapping[str, float], episodes: int) -> dict[str, float]:
    """Milliseconds per episode, the largest first."""
    each = {name: (after[name] - before[name]) * 1e3 / episodes for name in after if name in before}
    return dict(sorted(each.items(), key=lambda item: -item[1]))


def _table() -> dict[int, tuple[int, float]]:
    """Parent and seconds by pid."""
    table: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
            table[int(folder.name)] = int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / _TICKS_PER_S
    return table


def _with_descendants(pid: int, table: Mapping[int, tuple[int, float]]) -> float:
    children = [child for child, (parent, _) in table.items() if parent == pid]
    own = table[pid][1] if pid in table else 0.0
    return own + sum(_with_descendants(child, table) for child in children)
