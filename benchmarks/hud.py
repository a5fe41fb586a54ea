"""The peer HUD in an environment of its own, timed by peers/hud_run.py."""

import json
from pathlib import Path
from typing import Final

from benchmarks.peer_environment import PeerEnvironment
from benchmarks.stacks import BenchmarkFailed

VERSION: Final = "0.6.21"
HUD: Final = PeerEnvironment(
    "hud",
    VERSION,
    requirements=(f"hud=={VERSION}", "typer<0.29"),  # it fails with newer versions of typer
    variables={"HUD_TELEMETRY_ENABLED": "false", "HUD_CLI_ANALYTICS_ENABLED": "false"},
    run_s=600.0,
)


async def throughput(episodes: int, concurrency: int, folder: Path) -> float:
    """Episodes per second of its SubprocessRuntime with an agent that answers at once."""
    python = await HUD.prepare()
    program = str(Path(__file__).parent / "peers" / "hud_run.py")
    said = json.loads(
        (await HUD.output((str(python), program, str(episodes), str(concurrency)), folder)).splitlines()[-1]
    )
    if said["mean_reward"] != 1.0:
        raise BenchmarkFailed(f"HUD's episodes were not all right: {said}")
    return float(said["episodes"] / said["seconds"])
