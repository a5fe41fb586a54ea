"""`python -m benchmarks.model_baselines DEMO_FOLDER`: what two small models earn on the benchmarks that ship.

DEMO_FOLDER is what `upcycle demo --data-dir` left: its platform starts again, and the policy that it promoted
plays every task; so does a tiny model of random weights. Nothing is left out, and a 0 is a result. Writes
results/model_baselines.json and the table in docs/do/benchmarks.md.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import commit, machine_line
from benchmarks.programs import printed_by
from benchmarks.stacks import MODEL, POLICY_DIR, REPOSITORY, BenchmarkFailed, platform_variables
from local_stack.engines_on_demand import OnDemandLimits
from local_stack.importing import import_policy
from local_stack.stack import Stack, StackSettings
from upcycle.platform import Addresses
from upcycle.shipped import BENCHMARKS, Benchmark

TINY: Final = "tiny"
PLAYERS: Final = {MODEL: "policy of `make demo`", TINY: "tiny random model"}
RESULTS: Final = Path(__file__).parent / "results" / "model_baselines.json"
PAGE: Final = REPOSITORY / "docs" / "do" / "benchmarks.md"
_BEGIN: Final = "<!-- models: written by python -m benchmarks.model_baselines -->"
_END: Final = "<!-- end of models -->"
_HEAD: Final = ("benchmark", "player", "reward", "success", "episodes", "mean turns", "policy failures")
_EVAL_S: Final = 3600.0
_IMPORT_S: Final = 120.0


def main(argv: Sequence[str]) -> int:
    """0: measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_baselines", allow_abbrev=False)
    parser.add_argument("demo", type=Path, help="folder of a demo that has ended")
    parser.add_argument("--limit", type=int, help="only the first tasks of each; nothing is written down")
    asked = parser.parse_args(argv)
    rows = asyncio.run(measured(asked.demo.absolute(), asked.limit))
    print(table(rows))
    if asked.limit is None:
        kept = {"machine": machine_line(), "commit": commit(), "rows": rows}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
        write_page(PAGE, rows)
    return 0


async def measured(demo: Path, limit: int | None) -> list[dict[str, Any]]:
    """A row for each benchmark and player. Raises BenchmarkFailed."""
    if not (demo / "report.json").exists():
        raise BenchmarkFailed(
            f"no report.json in {demo}: run `upcycle demo --data-dir {demo} --no-stay` first"
        )
    settings = StackSettings(
        data_dir=demo,
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
        on_demand=OnDemandLimits(),
    )
    async with Stack(settings) as stack:
        where = Addresses(
            stack.peers, "the demo's stack", stack.gateway_key_file, operator_key_file=stack.operator_key_file
        )
        with tempfile.TemporaryDirectory(prefix="upcycle-tiny-") as scratch:
            folder = await _tiny_model(Path(scratch))
            registry, key = stack.peers["registry"], where.platform_key()
            await import_policy(registry, TINY, folder, key=key, timeout_s=_IMPORT_S)
        return [await _row(where, benchmark, player, limit) for benchmark in BENCHMARKS for player in PLAYERS]


async def _tiny_model(folder: Path) -> Path:
    """Made by `upcycle models create`; its tokenizer is fitted to the prompts of all tasks."""
    texts, made = folder / "prompts.txt", folder / TINY
    texts.write_text("\n".join([await _prompts(one) for one in BENCHMARKS.values()]), encoding="utf-8")
    await _upcycle({}, "models", "create", str(made), "--tiny", "--text", str(texts))
    return made


async def _prompts(benchmark: Benchmark) -> str:
    """Of all its tasks."""
    calibration = import_module(f"upcycle.benchmarks.{benchmark.folder}.baseline").CALIBRATION
    prompts = []
    for number in range(calibration.num_tasks):
        play = calibration.scenario.play({"number": number})
        prompts.append(str(await play.start()))
        await play.close()
    return "\n".join(prompts)


async def _row(where: Addresses, benchmark: str, player: str, limit: int | None) -> dict[str, Any]:
    limited = () if limit is None else ("--limit", str(limit))
    bars = ("--min-coverage", "0", "--timeout-s", f"{_EVAL_S:g}")
    printed = await _upcycle(
        platform_variables(where), "eval", "--benchmark", benchmark, player, "--json", *bars, *limited
    )
    done = json.loads(printed.splitlines()[-1])
    row = row_of(benchmark, player, done)
    print(json.dumps(row), file=sys.stderr)
    return row


async def _upcycle(env: Mapping[str, str], *arguments: str) -> str:
    argv = (str(Path(sys.executable).parent / "upcycle"), *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, env={**os.environ, **env}, stdout=pipe, stderr=pipe)
    return await printed_by(process, argv, _EVAL_S)


def row_of(benchmark: str, player: str, done: Mapping[str, Any]) -> dict[str, Any]:
    """Of the line `done` of `upcycle eval --json`."""
    overall, coverage = done["report"]["overall"], done["coverage"]
    return {
        "benchmark": benchmark,
        "player": player,
        "versions": done["evaluation"]["versions"],
        "reward": overall["reward"],
        "success": overall["success"],
        "planned": coverage["num_planned"],
        "graded": coverage["num_graded"],
        "missing": coverage["missing"],
        "policy_failures": coverage["policy_failures"],
        "mean_turns": done["report"]["mean_turns"],
        "families": {one["name"]: one["reward"] for one in done["report"]["families"]},
        "sampling": done["evaluation"]["sampling"],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As docs/do/benchmarks.md shows it."""
    lines = [_HEAD, ("---",) * len(_HEAD), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put the table between the page's two marks."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise BenchmarkFailed(f"{page} has lost its marks {_BEGIN!r} and {_END!r}: put them back")
    page.write_text(before + "\n\n".join([_BEGIN, table(rows), _END]) + after)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    failed = ", ".join(f"`{kind}` {count}" for kind, count in row["policy_failures"].items())
    missing = row["planned"] - row["graded"]
    return (
        f"`{row['benchmark']}`",
        PLAYERS[row["player"]],
        _estimate(row["reward"], 1, "{:.3f}"),
        _estimate(row["success"], 100, "{:.0f}") + " %",
        f"{row['graded']}" + (f", {missing} missing" if missing else ""),
        f"{row['mean_turns']:.1f}",
        failed or "none",
    )


def _estimate(found: Mapping[str, Any] | None, factor: float, form: str) -> str:
    """`0.000 (0.000–0.034)`, with its interval."""
    if found is None:
        return "–"
    if found["interval"] is None:
        spread = "all equal"
    else:
        spread = "–".join(form.format(factor * found["interval"][end]) for end in ("low", "high"))
    return f"{form.format(factor * found['value'])} ({spread})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
