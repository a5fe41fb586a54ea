"""`make simulate SEEDS=0-1000`, or `make simulate SEED=123` for one history with its trace."""

import argparse
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.simulation.history import Simulation
from tests.simulation.plans import plan_of

_SHOWN = 20
_IN_MEMORY = Path("/dev/shm")


def main() -> int:
    """0: every promise held in every history."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seeds", default="0-200", help="FIRST-LAST")
    parser.add_argument("--seed", type=int, help="one history, with its trace")
    parser.add_argument("--cpu-s", type=float, default=0.0, help="end after so much processor time")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first broken promise")
    parser.add_argument("--twice", action="store_true", help="play each twice: a seed must be one history")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    folder = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=folder) as own:
        simulation = Simulation(Path(own))
        return _one(simulation, given.seed) if given.seed is not None else _many(simulation, given)


def _one(simulation: Simulation, seed: int) -> int:
    logging.getLogger().setLevel(logging.INFO)
    plan = plan_of(seed)
    verdict = simulation.play(plan, traced=True)
    print(plan, *verdict.trace, verdict.broken or f"the run {verdict.run_ended}", sep="\n")
    return int(bool(verdict.broken))


def _many(simulation: Simulation, given: argparse.Namespace) -> int:
    logging.getLogger().setLevel(logging.INFO if given.twice else logging.ERROR)
    first, _, last = given.seeds.partition("-")
    began, ends = time.process_time(), Counter[str]()
    broken: dict[int, str] = {}
    traces: dict[int, str] = {}
    for seed in range(int(first), int(last or first) + 1):
        verdict = simulation.play(plan_of(seed), traced=given.twice)
        if given.twice:
            traces[seed] = hashlib.sha256("\n".join(verdict.trace).encode()).hexdigest()[:16]
            if simulation.play(plan_of(seed), traced=True).trace != verdict.trace:
                verdict.broken = verdict.broken or "REPLAY: the same seed gave another history"
        ends[verdict.broken.partition(":")[0] or verdict.run_ended] += 1
        if verdict.broken:
            broken[seed] = verdict.broken
            print(f"make simulate SEED={seed}   # {verdict.broken}", file=sys.stderr, flush=True)
            if not given.keep_going:
                break
        if 0 < given.cpu_s < time.process_time() - began:
            break
    cpu_s, count = time.process_time() - began, sum(ends.values())
    numbers = {"histories": count, "cpu_s": round(cpu_s, 1), "per_s": round(count / cpu_s, 1)}
    newest = dict(list(broken.items())[:_SHOWN])
    print(
        json.dumps(
            {**numbers, "ends": dict(ends), "broken": newest, **({"traces": traces} if traces else {})}
        )
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
