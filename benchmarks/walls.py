"""What the walls cost: the platform of today beside the one of the commit before the first of them.

The earlier tree is taken from this repository's history and set up in a folder of its own; both take turns.
Everything that came with the walls or after them counts as their cost.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, Limit, against
from benchmarks.options import Options
from benchmarks.programs import printed_by
from benchmarks.stacks import REPOSITORY

BEFORE: Final = "5eda3f216"
"""The commit before environments were put into cells."""
_FOLDER: Final = REPOSITORY / ".venv-before-walls"
_MOST: Final = 1.1
_SETUP_S, _PROBE_S = 1800.0, 600.0
_FIGURES: Final = {
    "episode_ms": ("processor time of an episode, all processes", "ms"),
    "request_ms": ("processor time of the gateway for a request of one token", "ms"),
    "start_s": ("processor time of a start, until everything is ready", "s"),
}


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout that is set up."""

    folder: Path
    python: Path

    async def costs(self, options: Options) -> dict[str, float]:
        """One run of the probe. Raises BenchmarkFailed."""
        probe = REPOSITORY / "benchmarks" / "peers" / "walls_probe.py"
        quick = ("--quick",) if options.quick else ()
        argv = (
            "env",
            f"PYTHONPATH={self.folder}",
            str(self.python),
            str(probe),
            str(options.scratch),
            *quick,
        )
        found: dict[str, float] = json.loads((await _printed(argv, self.folder, _PROBE_S)).splitlines()[-1])
        return found


async def measure(options: Options) -> list[Figure]:
    """The limit is on each cost alone, which is stricter than on all together."""
    trees = Tree(REPOSITORY, Path(sys.executable)), await _earlier()
    now: list[dict[str, float]] = []
    before: list[dict[str, float]] = []
    for _ in range(options.repeats(3)):
        for tree, costs in zip(trees, (now, before), strict=True):
            costs.append(await tree.costs(options))
    return [_figure(key, now, before) for key in _FIGURES]


def _figure(key: str, now: Sequence[dict[str, float]], before: Sequence[dict[str, float]]) -> Figure:
    name, unit = _FIGURES[key]
    ours, theirs = [one[key] for one in now], [one[key] for one in before]
    return Figure(
        name, unit, tuple(ours), against(f"commit {BEFORE}", ours, theirs, unit),
        Limit(_MOST, "×", at_most=True, of_ratio=True),
    )  # fmt: skip


async def _earlier() -> Tree:
    """Of the commit before the walls, set up when absent."""
    tree = Tree(_FOLDER, _FOLDER / ".venv" / "bin" / "python")
    stamp = _FOLDER / ".venv" / ".walls"
    if not stamp.exists():
        clone = ("git", "clone", "-q", "--no-checkout", str(REPOSITORY), str(_FOLDER))
        for argv in (clone, ("git", "-C", str(_FOLDER), "checkout", "-q", BEFORE)):
            await _printed(argv, REPOSITORY, _SETUP_S)
        await _printed(("make", "-C", str(_FOLDER), "setup"), REPOSITORY, _SETUP_S)
        stamp.touch()
    return tree


async def _printed(argv: tuple[str, ...], folder: Path, limit_s: float) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, cwd=folder, stdout=pipe, stderr=pipe)
    return await printed_by(process, argv, limit_s)
