"""`python -m benchmarks.scale`: the same at another size; nothing is written down."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.postgres import BACKENDS

from benchmarks.scale.measuring import LARGE, Plan, measured
from benchmarks.scale.size import EPISODES_PER_RUN, RUNS_PER_MODEL, Size


def main(argv: Sequence[str]) -> int:
    """0: every ratio is within its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", allow_abbrev=False)
    each = f"{EPISODES_PER_RUN} a run, and {RUNS_PER_MODEL} runs a model"
    parser.add_argument("--episodes", type=int, default=LARGE.episodes, help=each)
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=2, help="of each service")
    parser.add_argument("--only", default="", help="questions with this text in their names")
    given = parser.parse_args(argv)
    size = Size(max(RUNS_PER_MODEL, given.episodes // EPISODES_PER_RUN))
    plan = Plan(size, tuple(given.backend or BACKENDS), given.repeats, given.restarts, given.only)
    with tempfile.TemporaryDirectory(prefix="upcycle-bench-") as scratch:
        figures = asyncio.run(measured(plan, Path(scratch)))
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
