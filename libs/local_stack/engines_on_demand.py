"""Starts policy engines when they are asked for, and stops those that are not used any more."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import aiohttp

from local_stack.demand import EngineKey
from local_stack.managed import ProcessPhase
from local_stack.spec import ProcessSpec
from local_stack.supervisor import ProcessStatus
from upcycle.errors import UpcycleError

Report = Callable[[str, str], None]
_NAME: Final = "engines"
_RECENT_LOOKS: Final = 5
"""A request that came since so many looks is use."""


class Processes(Protocol):
    """What is needed of a supervisor."""

    def add(self, spec: ProcessSpec) -> None:
        """Start one more."""

    async def remove(self, name: str) -> None:
        """Stop one of those, and forget it."""

    def process(self, name: str) -> ProcessStatus:
        """How one is."""


class Needs(Protocol):
    """What is asked."""

    async def wanted(self, recent_s: float) -> frozenset[EngineKey]:
        """Engines that are needed now."""

    async def is_served(self, key: EngineKey) -> bool:
        """Whether some engine serves it."""


@dataclass(frozen=True, slots=True)
class OnDemandLimits:
    """idle_s: an engine that was not used for so long stops. max_engines: of those started here, at once; the
    one idle longest gives way. again_s: pause after an engine that could not be started."""

    idle_s: float = 600.0
    max_engines: int = 8
    look_s: float = 1.0
    again_s: float = 60.0


@dataclass(slots=True)
class _Kept:
    """An engine that was started here. used_at: monotonic seconds."""

    name: str
    used_at: float


@dataclass(slots=True)
class EnginesOnDemand:
    """Follows what is needed. fixed: engines that run anyway. spec: how an engine is started."""

    processes: Processes
    needs: Needs
    spec: Callable[[EngineKey], ProcessSpec]
    report: Report
    fixed: frozenset[EngineKey] = frozenset()
    limits: OnDemandLimits = field(default_factory=OnDemandLimits)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _kept: dict[EngineKey, _Kept] = field(default_factory=dict)
    _not_before: dict[EngineKey, float] = field(default_factory=dict)
    _said: str = ""

    async def run(self) -> None:
        """Look again and again; what does not answer is said once, and asked again."""
        while True:
            try:
                await self.look()
            except (UpcycleError, OSError, TimeoutError, aiohttp.ClientError) as error:
                self._say(f"what is needed is not known: {error}")
            await self.sleep(self.limits.look_s)

    async def look(self) -> None:
        """Start what is missing, stop what is idle."""
        wanted = await self.needs.wanted(_RECENT_LOOKS * self.limits.look_s) - self.fixed
        now, missing = self.monotonic(), []
        for key in sorted(wanted):
            if (kept := self._kept.get(key)) is not None:
                kept.used_at = now
            elif self._not_before.get(key, now) <= now:
                missing.append(key)
        await self._drop_failed(now)
        await self._stop_idle(now)
        for key in missing:
            if not await self.needs.is_served(key) and await self._has_room(wanted):
                self._start(key, now)

    def _start(self, key: EngineKey, now: float) -> None:
        spec = self.spec(key)
        self.processes.add(spec)
        self._kept[key] = _Kept(spec.name, now)
        self.report(_NAME, f"{key.model} is asked for: starting {spec.name}")

    async def _drop_failed(self, now: float) -> None:
        """An engine that was given up; why is in its log, and was said."""
        for key, kept in list(self._kept.items()):
            if self.processes.process(kept.name).phase == ProcessPhase.FAILED.value:
                self._not_before[key] = now + self.limits.again_s
                await self._stop(key, f"could not be started; again in {self.limits.again_s:g} s if needed")

    async def _stop_idle(self, now: float) -> None:
        for key, kept in list(self._kept.items()):
            if now - kept.used_at > self.limits.idle_s:
                await self._stop(key, f"not used for {self.limits.idle_s:g} s: stopped")

    async def _has_room(self, wanted: frozenset[EngineKey]) -> bool:
        if len(self._kept) < self.limits.max_engines:
            return True
        idle = sorted((kept.used_at, key) for key, kept in self._kept.items() if key not in wanted)
        if not idle:
            self._say(f"{self.limits.max_engines} engines run and are needed: others wait for one of them")
            return False
        await self._stop(idle[0][1], "stopped, to make room for another one")
        return True

    async def _stop(self, key: EngineKey, why: str) -> None:
        kept = self._kept.pop(key)
        self.report(kept.name, why)
        await self.processes.remove(kept.name)

    def _say(self, what: str) -> None:
        """Once, until something else is to be said."""
        if what != self._said:
            self._said = what
            self.report(_NAME, what)
