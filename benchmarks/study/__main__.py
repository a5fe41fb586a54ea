"""`python -m benchmarks.study METHOD`: arms over five seeds, means with 95 % intervals, the last line one
JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from benchmarks.study.arms import Study, interval
from benchmarks.study.methods import STUDIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one study."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("method", choices=sorted(STUDIES))
    parser.add_argument("--seeds", type=int, choices=(1, 3, 5), default=5)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(json.dumps(measured(asked.method, STUDIES[asked.method], asked.seeds)))
    return 0


def measured(method: str, study: Study, seeds: int) -> dict[str, object]:
    """Prints the table; returns it."""
    print(f"{method}: option {study.option} ({study.source}); {seeds} seeds, 95 % intervals over seeds")
    print(f"{'arm':<28} " + " ".join(f"{name:>16}" for name in study.columns))
    arms: dict[str, dict[str, list[float]]] = {}
    for arm in study.arms:
        runs = [arm.play(seed) for seed in range(seeds)]
        columns = {name: interval([run[name] for run in runs]) for name in study.columns}
        arms[arm.name] = {name: [round(one, 4) for one in columns[name]] for name in study.columns}
        print(
            f"{arm.name:<28} " + " ".join(f"{mean:>9.3f} ±{half:<5.3f}" for mean, half in columns.values()),
            flush=True,
        )
    return {"method": method, "option": study.option, "seeds": seeds, "measure": study.measure, "arms": arms}


if __name__ == "__main__":
    sys.exit(main())
