"""`upcycle …` as a user meets it, in this process or its own, against services that a test started."""

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cyclopts
import pytest

from upcycle.cli.exits import Exit
from upcycle.cli.main import build_app
from upcycle.cli.output import fail
from upcycle.platform import PEERS

UPCYCLE: Final = Path(sys.executable).parent / "upcycle"
NO_PEERS: Final = {f"UPCYCLE_PEERS_{peer.upper()}": "127.0.0.1:1" for peer in PEERS}
"""Where nothing listens."""


def without_settings() -> dict[str, str]:
    """The variables of this process but for those of Upcycle."""
    return {name: value for name, value in os.environ.items() if not name.startswith("UPCYCLE_")}


async def run_upcycle(
    *arguments: str, env: Mapping[str, str], cwd: Path | None = None, limit_s: float = 100.0
) -> tuple[int, str, str]:
    """Exit status, output and errors of a process with these variables alone. Raises TimeoutError."""
    child = await asyncio.create_subprocess_exec(
        UPCYCLE, *arguments, env=env, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(limit_s):
        out, err = await child.communicate()
    assert child.returncode is not None
    return child.returncode, out.decode(), err.decode()


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


class CommandLine:
    """Commands find the services at these addresses; at all others nothing listens."""

    def __init__(self, capsys: pytest.CaptureFixture[str], addresses: Mapping[str, str]) -> None:
        self._capsys = capsys
        self._addresses = {**dict.fromkeys(PEERS, "127.0.0.1:1"), **addresses}

    async def __call__(self, *arguments: str) -> Said:
        """As `upcycle.cli.main.run` does, in the loop of the test."""
        self._capsys.readouterr()
        with self._found():
            try:
                command, bound, _ = build_app().parse_args(list(arguments), exit_on_error=False)
                result = command(*bound.args, **bound.kwargs)
                status = await result if inspect.isawaitable(result) else result
            except cyclopts.CycloptsError:
                status = Exit.USAGE
            except Exception as error:
                status = fail(error)
        printed = self._capsys.readouterr()
        return Said(int(status), printed.out, printed.err)

    @contextmanager
    def _found(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for peer, address in self._addresses.items():
                patch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", address)
            yield
