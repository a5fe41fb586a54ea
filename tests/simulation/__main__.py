"""`make simulate SEEDS=0-1000`, or `make simulate SEED=123` for one history with its trace."""

import argparse
import logging
import os
import sys
from pathlib import Path

from tests.simulation.many import Wanted, play, simulation
from tests.simulation.plans import plan_of


def main() -> int:
    """0: every promise held in every history."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", type=_seeds, default="0-200", metavar="FIRST-LAST")
    parser.add_argument("--seed", type=int, help="one history, with its trace")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--cpu-s", type=float, default=0.0, help="end after so much processor time")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first broken promise")
    parser.add_argument("--twice", action="store_true", help="play each twice: a seed must be one history")
    parser.add_argument("--keep", type=Path, help="file of results: what it has is not played again")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    if given.seed is not None:
        return _one(given.seed)
    first, last = given.seeds
    limits = {"cpu_s": given.cpu_s, "keep_going": given.keep_going, "twice": given.twice, "keep": given.keep}
    total = play(Wanted(first, last, max(1, given.jobs), **limits))
    print(total.as_json())
    return int(bool(total.broken))


def _seeds(given: str) -> tuple[int, int]:
    """First and last. Raises ArgumentTypeError."""
    first, _, last = given.partition("-")
    try:
        return int(first), int(last or first)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{given!r} is no FIRST-LAST such as 0-200") from error


def _one(seed: int) -> int:
    logging.getLogger().setLevel(logging.INFO)
    plan = plan_of(seed)
    verdict = simulation().play(plan, traced=True)
    print(plan, *verdict.trace, verdict.broken or f"the run {verdict.run_ended}", sep="\n")
    return int(bool(verdict.broken))


if __name__ == "__main__":
    sys.exit(main())
