"""Grammars are tried in a process of their own first, which is ended where one takes too long or too much."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

_PROCESSES: Final = 2
_START_S: Final = 60.0
"""Longest that a process may take to be there with a tokenizer: no request can make it longer."""
_LINE_BYTES: Final = 1 << 20


class NoTrialFree(Exception):
    """Other grammars were tried all the time."""


class TrialTooLong(Exception):
    """The grammar was not compiled in time."""


class TrialEnded(Exception):
    """The process ended over the grammar: by its limits of memory or of processor time."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """What a tokenizer is made of. digest: of the rest, which versions of a policy share."""

    digest: str
    json: str
    vocab: int
    stop_token_ids: tuple[int, ...]


class GrammarTrials:
    """What all compilers of an engine share. A flood of large grammars holds up other grammars alone."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_PROCESSES)
        self._idle: list[_TrialProcess] = []

    async def run(self, grammar: str, tokenizer: TokenizerSource, *, within_s: float) -> None:
        """Returns once a process has compiled it. Raises NoTrialFree, TrialTooLong,
        TrialEnded."""
        async with self._process(within_s) as process:
            async with asyncio.timeout(_START_S):
                await process.learn(tokenizer)
            asked = {"grammar": grammar, "seconds": within_s}
            try:
                async with asyncio.timeout(within_s):
                    await process.ask(asked)
            except TimeoutError as error:
                raise TrialTooLong from error

    async def close(self) -> None:
        """End the processes that wait for work."""
        while self._idle:
            await self._idle.pop().end()

    @asynccontextmanager
    async def _process(self, within_s: float) -> "AsyncIterator[_TrialProcess]":
        """One for this caller alone; it is ended unless it comes back in order."""
        try:
            async with asyncio.timeout(within_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise NoTrialFree from error
        try:
            process = self._idle.pop() if self._idle else await _TrialProcess.start()
            try:
                yield process
            except BaseException:
                await process.end()
                raise
            self._idle.append(process)
        finally:
            self._free.release()


class _TrialProcess:
    """A running `grammar_trial`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._known = ""

    @classmethod
    async def start(cls) -> Self:
        """A fresh one."""
        program = (sys.executable, "-m", "embedded_engine.grammar_trial")
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, limit=_LINE_BYTES))

    async def learn(self, tokenizer: TokenizerSource) -> None:
        """Send a tokenizer, unless it has that one."""
        if tokenizer.digest == self._known:
            return
        ids = list(tokenizer.stop_token_ids)
        await self.ask({"tokenizer": tokenizer.json, "vocab": tokenizer.vocab, "stop_token_ids": ids})
        self._known = tokenizer.digest

    async def ask(self, said: dict[str, Any]) -> None:
        """Returns with the answer. Raises TrialEnded."""
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise AssertionError("a trial process has pipes")
        try:
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        except ConnectionError as error:
            raise TrialEnded from error
        if not line:
            raise TrialEnded

    async def end(self) -> None:
        """Also in the middle of its work."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
