"""`python -m benchmarks [NAME…]`: measure, print the table, keep the figures in results/ and the README."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final

from benchmarks import table
from benchmarks.figures import Figure
from benchmarks.machine import commit, load, machine_line
from benchmarks.options import Options
from benchmarks.stacks import BenchmarkFailed

Measure = Callable[[Options], Awaitable[list[Figure]]]
NAMES: Final = (
    "pipeline",
    "environments",
    "promotion",
    "reloads",
    "weight_movement",
    "multi_turn",
    "gateway",
    "gateways",
    "black_box",
    "engine",
    "trainer",
    "checkpoint_stall",
    "trl_step",
    "command_line",
    "assembler",
    "staleness",
    "ledger",
    "scale",
    "decisions",
    "outbox",
    "queues",
    "echo_eval",
    "wall_clock",
    "gpu",
    "walls",
    "watch",
)
ON_REQUEST: Final = ("gpu",)
"""Only where they are named: they need what few machines have."""
RESULTS: Final = Path(__file__).parent / "results"


def main(argv: Sequence[str]) -> int:
    """0: measured; 1: a benchmark failed or a limit was missed."""
    arguments = _parse(argv)
    rows: dict[str, table.Result] = {}
    failures = 0
    for name in arguments.names or [name for name in NAMES if name not in ON_REQUEST]:
        try:
            rows[name] = _measure(name, quick=arguments.quick)
        except BenchmarkFailed as error:
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
    if not arguments.quick:
        _keep(rows)
    print(table.markdown(rows))
    missed = [figure.name for row in rows.values() for figure in row.figures if figure.met is False]
    for name in missed:
        print(f"limit missed: {name}", file=sys.stderr)
    return 1 if failures or missed else 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", allow_abbrev=False)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="tiny sizes; nothing is written down")
    return parser.parse_args(argv)


def _measure(name: str, *, quick: bool) -> table.Result:
    measure: Measure = import_module(f"benchmarks.{name}").measure
    before, began = load(), time.monotonic()
    print(f"{name}: load {before:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="upcycle-bench-") as scratch:
        figures = asyncio.run(_awaited(measure, Options(Path(scratch), quick)))
    for figure in figures:
        print(table.line(figure), file=sys.stderr)
    return table.Result(tuple(figures), before, time.monotonic() - began, datetime.now(UTC), commit())


async def _awaited(measure: Measure, options: Options) -> list[Figure]:
    return await measure(options)


def _keep(rows: Mapping[str, table.Result]) -> None:
    machine = machine_line()
    for name, row in rows.items():
        kept = json.dumps({"benchmark": name, "machine": machine, **row.to_json()}, indent=1)
        (RESULTS / f"{name}.json").write_text(kept + "\n")
    table.write_readme(Path(__file__).parent / "README.md", RESULTS, NAMES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
