"""The engine as a child process, or as one at a URL that runs without us."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine_client import NO_VERSION, EngineClient, EngineError, parse_label
from policy_engine.adapters.computing import ComputingWatch
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
_DRAIN_POLL_S = 0.2
HANG_S = 120.0
"""Until an engine that computes nothing counts as hung, where no setting says otherwise."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How to start an engine."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Beside what every child gets."""
    scheme: str = "http"
    """Which it speaks."""


class EngineKind(Protocol):
    """What differs between the engines that an engine supervisor can start."""

    @property
    def admin_key_variable(self) -> str:
        """Where it reads the key that steering it needs; "": it has none."""

    def command(self, directory: Path, host: str, port: int) -> EngineCommand:
        """How to start it on a prepared directory."""

    @property
    def keeps_weights(self) -> bool:
        """Its weights cannot be changed in place: it is started again for others."""

    def prepare(self, policy: Policy) -> Path:
        """The directory it should load for a policy. Raises VersionRefused."""

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        """The directory it should load to hold a policy beside the one that it serves. Raises
        VersionRefused."""


class _Engine:
    """What a child process and an attached engine have in common: a kind, a client, and health checks."""

    def __init__(self, kind: EngineKind, base_url: str, start_s: float, hang_s: float) -> None:
        self.base_url = base_url
        self._kind = kind
        self._start_s = start_s
        self._hang_s = hang_s
        self._client: EngineClient | None = None
        self._computing: ComputingWatch | None = None
        self._hung = ""
        """Why it counts as dead although it says that it is well."""
        self._missed = 0
        self._unwell = ""
        """What the newest health check said; "" for alive."""

    def prepare(self, policy: Policy) -> Path:
        """The directory to load for a policy, as this engine can reload it. Raises VersionRefused."""
        return self._kind.prepare(policy)

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        """The directory to load to hold a policy beside the one that serves. Raises VersionRefused."""
        return self._kind.prepare_held(policy, serving)

    @property
    def keeps_weights(self) -> bool:
        """Its weights cannot be changed in place."""
        return self._kind.keeps_weights

    async def stop(self) -> None:
        """Close the connection to the engine."""
        client, self._client, self._missed, self._unwell = self._client, None, 0, ""
        computing, self._computing, self._hung = self._computing, None, ""
        if computing is not None:
            await computing.close()
        if client is not None:
            await client.close()

    def failure(self) -> str | None:
        """Why it is dead, or None while it lives: here, because too many health checks in a row failed, or
        because it computes nothing."""
        if self._missed < _MISSED_HEALTH:
            return self._hung or None
        return f"it failed {self._missed} health checks in a row: {self._unwell}"

    def _talk_to(self, client: EngineClient) -> EngineClient:
        """From now on to this engine."""
        self._client = client
        self._computing = ComputingWatch(client, self._hang_s, time.monotonic)
        return client

    async def _look(self) -> None:
        """Check once whether it is well, and whether it computes."""
        if self._client is None or self._computing is None:
            return
        self._unwell = await self._client.why_unwell()
        self._missed = self._missed + 1 if self._unwell else 0
        if not self._unwell:
            self._hung = await self._computing.why_hung()

    async def _is_well(self, client: EngineClient) -> bool:
        """While it starts: a short look."""
        self._unwell = await client.why_unwell(timeout_s=2.0)
        return not self._unwell

    def _not_healthy(self) -> str:
        return f"{self.base_url} was not healthy within {self._start_s:g} s ({self._unwell})"


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
        hang_s: float = HANG_S,
    ) -> None:
        super().__init__(kind, "", start_s, hang_s)
        self._host = host
        self._port = port
        self._log_path = log_path
        self._variables = variables
        self._process: asyncio.subprocess.Process | None = None
        self.admin_key = ""
        """That steers the process which runs now, of an engine that has one."""

    @property
    def pid(self) -> int:
        """Of the process that runs now; 0: none does."""
        return 0 if self._process is None else self._process.pid

    async def start(self, policy: Policy) -> EngineControl:
        """Start it on a policy and return once it is healthy. Raises EngineBroken."""
        await self.stop()
        port = self._port or free_ports(1, self._host)[0]
        command = self._kind.command(self.prepare(policy), self._host, port)
        variable = self._kind.admin_key_variable
        self.admin_key = secrets.token_urlsafe(_KEY_BYTES) if variable else ""
        with_key = {variable: self.admin_key} if variable else {}
        self._process = await _spawn(command, self._log_path, self._variables, with_key)
        self.base_url = f"{command.scheme}://{self._host}:{port}"
        client = self._talk_to(EngineClient(self.base_url, admin_key=self.admin_key))
        log.info("engine_started", extra={"pid": self._process.pid, "url": self.base_url})
        await self._until_healthy(client)
        return client

    async def drain(self, limit_s: float) -> None:
        """Let the requests that it has end, for `limit_s` at most; callers send it no new ones."""
        try:
            async with asyncio.timeout(limit_s):
                while self._client is not None and not (await self._client.load()).is_idle:
                    await asyncio.sleep(_DRAIN_POLL_S)
        except TimeoutError:
            log.warning("requests_cut_off", extra={"url": self.base_url, "after_s": limit_s})
        except EngineError as error:
            log.warning("engine_not_drained", extra={"url": self.base_url, "why": str(error)})

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
                while not await self._is_well(client):
                    if (why := self.failure()) is not None:
                        raise EngineBroken(why)
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError as error:
            why = self._not_healthy()
            await self.stop()
            raise EngineBroken(f"{why}; its log ends: {_tail(self._log_path)}") from error


class AttachedEngine(_Engine):
    """An engine that runs by itself. It must see the supervisor's cache directory under the same path."""

    def __init__(
        self, kind: EngineKind, base_url: str, *, start_s: float, admin_key: str = "", hang_s: float = HANG_S
    ) -> None:
        super().__init__(kind, base_url.rstrip("/"), start_s, hang_s)
        self._admin_key = admin_key
        self._replaced = ""
        """What says that its owner started another process in its place."""

    async def start(self, policy: Policy) -> EngineControl:
        """Wait until it answers, and load the policy over whatever it serves."""
        await self.stop()
        self._replaced = ""
        client = self._talk_to(EngineClient(self.base_url, admin_key=self._admin_key))
        try:
            async with asyncio.timeout(self._start_s):
                while not await self._is_well(client):
                    await asyncio.sleep(1.0)
            directory = self.prepare(policy)
            await client.pause("keep")
            try:
                # First: a supervisor of before may have named what served, and nothing is proven yet.
                await client.update_weight_version(NO_VERSION)
                await client.reload_weights(directory)
                await client.reset_prefix_cache()
            finally:  # refused or cancelled: it is not ours to keep
                await client.resume()
        except TimeoutError as error:
            raise EngineBroken(self._not_healthy()) from error
        except EngineError as error:
            raise EngineBroken(f"{self.base_url} does not take weights: {error}") from error
        return client

    async def drain(self, limit_s: float) -> None:
        """Nothing: it goes on with its requests without us."""

    def failure(self) -> str | None:
        """Why it does not serve what we loaded, or None while it does."""
        return self._replaced or super().failure()

    async def died(self) -> None:
        """Return when it stopped answering, or was replaced: its owner looks after its life."""
        while self.failure() is None:
            await asyncio.sleep(_WATCH_S)
            await self._look()

    async def _look(self) -> None:
        await super()._look()
        if self._client is None or self._unwell:
            return
        try:
            label = await self._client.weight_version()
        except EngineError as error:
            log.warning("label_not_read", extra={"url": self.base_url, "why": str(error)})
            return
        if parse_label(label) is None:  # each version that we load has a label of ours
            self._replaced = f"its owner started it again: its weights are called {label!r}, and none of ours"


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
