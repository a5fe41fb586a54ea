"""The peer HUD in an environment of its own: prepared when absent, timed by peers/hud_run.py."""

import asyncio
import json
import os
import sys
from pathlib import Path

from benchmarks.stacks import REPOSITORY, BenchmarkFailed

VERSION = "0.6.21"
VENV = REPOSITORY / ".venv-hud"
_QUIET = {"HUD_TELEMETRY_ENABLED": "false", "HUD_CLI_ANALYTICS_ENABLED": "false"}
_PREPARE_S, _RUN_S = 600.0, 600.0


async def throughput(episodes: int, concurrency: int, folder: Path) -> float:
    """Episodes per second of its SubprocessRuntime with an agent that answers at once."""
    await _prepare()
    program = str(Path(__file__).parent / "peers" / "hud_run.py")
    argv = (str(VENV / "bin" / "python"), program, str(episodes), str(concurrency))
    said = json.loads((await _output(argv, folder, _RUN_S)).splitlines()[-1])
    if said["mean_reward"] != 1.0:
        raise BenchmarkFailed(f"HUD's episodes were not all right: {said}")
    return float(said["episodes"] / said["seconds"])


async def _prepare() -> None:
    """As `python -m venv .venv-hud; pip install hud`; 0.6.21 fails with newer versions of typer."""
    stamp = VENV / f".hud-{VERSION}"
    if stamp.exists():
        return
    python = str(VENV / "bin" / "python")
    await _output((sys.executable, "-m", "venv", str(VENV)), REPOSITORY, _PREPARE_S)
    install = (python, "-m", "pip", "install", "-q", f"hud=={VERSION}", "typer<0.29")
    await _output(install, REPOSITORY, _PREPARE_S)
    stamp.touch()


async def _output(argv: tuple[str, ...], folder: Path, limit_s: float) -> str:
    """Standard output of a program that must succeed."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, **_QUIET}
    process = await asyncio.create_subprocess_exec(*argv, cwd=folder, env=env, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise BenchmarkFailed(f"{argv[0]} took longer than {limit_s:g} s") from error
    if process.returncode:
        raise BenchmarkFailed(f"{' '.join(argv)} exited with {process.returncode}: {err.decode()[-2000:]}")
    return out.decode()
