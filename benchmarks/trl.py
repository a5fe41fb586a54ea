"""The peer TRL in an environment of its own: prepared when absent, driven by programs in peers/."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.stacks import REPOSITORY, BenchmarkFailed

VERSION: Final = "1.16"
VENV: Final = REPOSITORY / ".venv-trl"
_SETTINGS: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # as the platform's own trainer runs
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
_PREPARE_S, _RUN_S = 1800.0, 3600.0


async def prepare() -> Path:
    """Its Python. As `python -m venv .venv-trl; pip install trl==1.16.*`, on our torch and transformers."""
    python, stamp = VENV / "bin" / "python", VENV / f".trl-{VERSION}"
    if stamp.exists():
        return python
    await output((sys.executable, "-m", "venv", str(VENV)), REPOSITORY, limit_s=_PREPARE_S)
    torch = str(REPOSITORY / "requirements" / "torch.txt")
    pip = (str(python), "-m", "pip", "install", "-q", "-c", torch)
    await output((*pip, f"trl=={VERSION}.*", "transformers>=5.20,<6"), REPOSITORY, limit_s=_PREPARE_S)
    stamp.touch()
    return python


async def output(argv: tuple[str, ...], folder: Path, *, limit_s: float = _RUN_S) -> str:
    """Standard output of a program that must succeed; it can import the repository's examples."""
    pipe = asyncio.subprocess.PIPE
    env = {**os.environ, **_SETTINGS, "PYTHONPATH": str(REPOSITORY)}
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
