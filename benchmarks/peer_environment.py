"""A peer in a virtual environment of its own beside ours: prepared when absent, run as programs."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.programs import printed_by
from benchmarks.stacks import REPOSITORY

_PREPARE_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class PeerEnvironment:
    """`.venv-<name>`. requirements: arguments of `pip install`; variables: of its programs, beside ours;
    run_s: how long one of them may take unless said otherwise."""

    name: str
    version: str
    requirements: tuple[str, ...]
    variables: Mapping[str, str]
    run_s: float

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return REPOSITORY / f".venv-{self.name}" / "bin" / "python"

    async def prepare(self) -> Path:
        """Its interpreter, with everything installed. Raises BenchmarkFailed."""
        folder = self.python.parents[1]
        stamp = folder / f".{self.name}-{self.version}"
        if not stamp.exists():
            venv = (sys.executable, "-m", "venv", str(folder))
            pip = (str(self.python), "-m", "pip", "install", "-q", *self.requirements)
            for argv in (venv, pip):
                await self.output(argv, REPOSITORY, limit_s=_PREPARE_S)
            stamp.touch()
        return self.python

    async def output(self, argv: tuple[str, ...], folder: Path, *, limit_s: float | None = None) -> str:
        """Standard output of a program that must succeed. Raises BenchmarkFailed."""
        pipe, limit_s = asyncio.subprocess.PIPE, self.run_s if limit_s is None else limit_s
        env = {**os.environ, **self.variables}
        process = await asyncio.create_subprocess_exec(*argv, cwd=folder, env=env, stdout=pipe, stderr=pipe)
        return await printed_by(process, argv, limit_s)
