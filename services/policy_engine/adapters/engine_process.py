"""The engine as a child process, or as one at a URL that runs without us."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine_client import EngineClient, EngineError
from policy_engine.domain import EngineBroken, Policy
from policy_engine.ports import EngineControl
from service_kit.child_environment import child_environment
from service_kit.leash import leashed
from service_kit.ports import free_ports

log = logging.getLogger(__name__)

_HEALTH_POLL_S = 0.1
_WATCH_S = 2.0
_MISSED_HEALTH = 5
_STOP_S = 10.0
_TAIL_BYTES = 3000
_KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start an engine."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Beside what every child gets."""


class EngineKind(Protocol):
    """What differs between the engines that an engine supervisor can start."""

    @property
    def admin_key_variable(self) -> str:
        """Where it reads the key that steering it needs; "": it has none."""

    def command(self, directory: Path, host: str, port: int) -> EngineCommand:
        """How to start it on a prepared directory."""

    def prepare(self, policy: Policy) -> Path:
        """The directory it should load for a policy. Raises VersionRefused."""


class _Engine:
    """What a child process and an attached engine have in common: a kind, a client, and health checks."""

    def __init__(self, kind: EngineKind, base_url: str, start_s: float) -> None:
        self.base_url = base_url
        self._kind = kind
        self._start_s = start_s
        self._client: EngineClient | None = None
        self._missed = 0

    def prepare(self, policy: Policy) -> Path:
        """The directory to load for a policy, as this engine can reload it. Raises VersionRefused."""
        return self._kind.prepare(policy)

    async def stop(self) -> None:
        """Close the connection to the engine."""
        client, self._client, self._missed = self._client, None, 0
        if client is not None:
            await client.close()

    def failure(self) -> str | None:
        """Why it is dead, or None while it lives: here, because too many health checks in a row failed."""
        if self._missed < _MISSED_HEALTH:
            return None
        return f"it failed {self._missed} health checks in a row"

    async def _look(self) -> None:
        """Check its health once."""
        healthy = self._client is None or await self._client.health()
        self._missed = 0 if healthy else self._missed + 1


class EngineProcess(_Engine):
    """Starts, watches and ends one engine process. variables: names of ours that it gets beside the usual
    ones."""

    def __init__(
        self,
        kind: EngineKind,
        host: str,
        port: int,
        *,
        start_s: float,
        log_path: Path,
        variables: Sequence[str] = (),
    ) -> None:
        super().__init__(kind, "", start_s)
        self._host = host
        self._port = port
        self._log_path = log_path
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self.admin_key = ""
        """That steers the process which runs now, of an engine that has one."""

    async def start(self, policy: Policy) -> EngineControl:
        """Start it on a policy and return once it is healthy. Raises EngineBroken."""
        await self.stop()
        port = self._port or free_ports(1, self._host)[0]
        command = self._kind.command(self.prepare(policy), self._host, port)
        variable = self._kind.admin_key_variable
        self.admin_key = secrets.token_urlsafe(_KEY_BYTES) if variable else ""
        with_key = {variable: self.admin_key} if variable else {}
        self._process = await _spawn(command, self._log_path, self._variables, with_key)
        self.base_url = f"http://{self._host}:{port}"
        self._client = EngineClient(self.base_url, admin_key=self.admin_key)
        log.info("engine_started", extra={"pid": self._process.pid, "url": self.base_url})
        await self._until_healthy(self._client)
        return self._client

    async def stop(self) -> None:
        """End it and what it started."""
        await super().stop()
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    def failure(self) -> str | None:
        """Why it is dead, or None while it lives."""
        if self._process is None or self._process.returncode is None:
            return super().failure()
        return f"it exited with status {self._process.returncode}; its log ends: {_tail(self._log_path)}"

    async def died(self) -> None:
        """Return when it died without being stopped; one that fails its health checks counts as dead."""
        while self.failure() is None and self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await self._process.wait()
                return
            await self._look()

    async def _until_healthy(self, client: EngineClient) -> None:
        try:
            async with asyncio.timeout(self._start_s):
                while not await client.health(timeout_s=2.0):
                    if (why := self.failure()) is not None:
                        raise EngineBroken(why)
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError as error:
            await self.stop()
            raise EngineBroken(
                f"it was not healthy within {self._start_s:g} s; its log ends: {_tail(self._log_path)}"
            ) from error


class AttachedEngine(_Engine):
    """An engine that runs by itself. It must see the supervisor's cache directory under the same path."""

    def __init__(self, kind: EngineKind, base_url: str, *, start_s: float, admin_key: str = "") -> None:
        super().__init__(kind, base_url.rstrip("/"), start_s)
        self._admin_key = admin_key

    async def start(self, policy: Policy) -> EngineControl:
        """Wait until it answers, and load the policy over whatever it serves."""
        await self.stop()
        self._client = EngineClient(self.base_url, admin_key=self._admin_key)
        try:
            async with asyncio.timeout(self._start_s):
                while not await self._client.health(timeout_s=2.0):
                    await asyncio.sleep(1.0)
            directory = self.prepare(policy)
            await self._client.pause("keep")
            try:
                await self._client.reload_weights(directory)
                await self._client.reset_prefix_cache()
            finally:  # refused or cancelled: it is not ours to keep
                await self._client.resume()
        except TimeoutError as error:
            raise EngineBroken(f"{self.base_url} was not healthy within {self._start_s:g} s") from error
        except EngineError as error:
            raise EngineBroken(f"{self.base_url} does not take weights: {error}") from error
        return self._client

    async def died(self) -> None:
        """Return when it stopped answering: its owner looks after its life."""
        while self.failure() is None:
            await asyncio.sleep(_WATCH_S)
            await self._look()


async def _spawn(
    command: EngineCommand, log_path: Path, variables: Sequence[str], secret: Mapping[str, str]
) -> asyncio.subprocess.Process:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as output:
        return await asyncio.create_subprocess_exec(
            *leashed(command.argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**child_environment(variables), **command.env, **secret},
            start_new_session=True,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM to the engine and what it started, SIGKILL after a while."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()
            break
    # Its workers may outlive it by a moment; the process group holds nothing else.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").strip()
    except OSError as error:
        return f"(no log: {error})"
