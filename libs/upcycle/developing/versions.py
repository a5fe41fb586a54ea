"""One loaded version of an environment: a program that serves it, until it is replaced."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upcycle.environment.source_files import source_digest
from upcycle.errors import Failed

LOAD_S: Final = 60.0
END_S: Final = 10.0
_PORT: Final = "UPCYCLE_SERVE_PORT="
_MAX_LINE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DevSource:
    """What is to be served. attribute: which environment of the file, None for its only one."""

    path: Path
    attribute: str | None = None


class Version:
    """Serves on the control channel at `url`. digest: of the source that it was loaded from."""

    def __init__(self, process: asyncio.subprocess.Process, printed: Callable[[str], None]) -> None:
        self.url = ""
        self.digest = ""
        self._process = process
        self._printed = printed
        self._first: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def load(cls, source: DevSource, printed: Callable[[str], None]) -> "Version":
        """Start it. printed: takes each line that the environment prints. Raises Failed with what it said
        where it does not load within LOAD_S."""
        digest = _digest_of(source.path)
        arguments = [str(source.path), "--no-mcp", "--until-stdin-closes"]
        arguments += ["--name", source.attribute] if source.attribute else []
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "upcycle.environment.serve", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which ends it
            limit=_MAX_LINE_BYTES,
        )
        version = cls(process, printed)
        try:
            async with asyncio.timeout(LOAD_S):
                await version._until_it_serves()
        except TimeoutError:
            await version.end()
            raise Failed(f"{source.path} was not imported within {LOAD_S:g} s") from None
        except BaseException:
            await version.end()
            raise
        version.digest = digest
        return version

    async def end(self) -> None:
        """Stop it with its sessions: its standard input closes, and after END_S it is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._reading.cancel()

    async def _until_it_serves(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        while line := await self._process.stdout.readline():
            if line.startswith(_PORT.encode()):
                self.url = f"tcp://127.0.0.1:{int(line.decode().partition('=')[2])}"
                self._show_first()
                return
        await self._process.wait()
        await asyncio.wait([self._reading], timeout=END_S)
        raise Failed("\n".join(self._first) or "its process ended without a word")

    def _show_first(self) -> None:
        for line in self._first:
            self._printed(line)
        self._first.clear()

    async def _read(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - a pipe was asked for
        while line := await self._process.stderr.readline():
            text = line.decode("utf-8", "replace").rstrip("\n")
            if self.url:
                self._printed(text)
            else:
                self._first.append(text)


def _digest_of(path: Path) -> str:
    try:
        return source_digest(path)[:12]
    except Exception:  # what is wrong is shown when it is loaded
        return ""
