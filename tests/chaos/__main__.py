"""`make chaos`: one stack, one campaign, one JSON line, and an exit status."""

import argparse
import asyncio
import json
import random
import secrets
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign, verdict
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, register_incident, small_training

from local_stack.stack import Stack, StackSettings


def parse() -> argparse.Namespace:
    """The two settings of a campaign."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--duration-s", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    return parser.parse_args()


async def main() -> int:
    """Exit status: 0 when nothing was lost, trained twice or served stale."""
    args = parse()
    print(f"seed {args.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="upcycle-chaos-") as folder:
        settings = StackSettings(
            data_dir=Path(folder),
            model=MODEL,
            model_dir=POLICY_DIR,
            environment_roots=(REPOSITORY,),
            ephemeral_ports=True,
            on_event=lambda line: print(line, file=sys.stderr),
        )
        async with Stack(settings) as stack:
            await register_incident(stack)
            spec = small_training(steps=10_000 if args.duration_s > 600 else 12, seed=args.seed)
            victims = [process.name for process in stack.processes]
            campaign = Campaign(stack, spec, victims, random.Random(args.seed))
            line = await campaign.run(args.duration_s)
    print(json.dumps(line))
    return 0 if verdict(line) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
