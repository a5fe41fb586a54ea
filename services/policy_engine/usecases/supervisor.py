"""The supervisor's loop: one engine process, one channel, one proven version at a time.

What it waits for is always named (`ready`). Guarantees: the lease never says that a version serves which is
not proven in the running process; newest wins, versions in between are skipped; a refused version leaves the
old one serving; a dead engine, and one that computes no more what was proven, is started again on the
version it served.
"""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine_client import EngineState
from policy_engine.domain import (
    EngineBroken,
    EngineTarget,
    FailureKind,
    LeaseFacts,
    Policy,
    Reloaded,
    ServedPolicy,
    VersionRefused,
)
from policy_engine.ports import (
    Announcer,
    Clock,
    EngineControl,
    EngineHost,
    PolicyStore,
    ReloadTelemetry,
    Versions,
)
from policy_engine.usecases.pins import PinnedPolicies
from policy_engine.usecases.reload import ReloadProtocol
from service_kit.loops import pause
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_REMEMBERED: Final = 64


@dataclass(frozen=True, slots=True)
class SupervisorTimings:
    """Waits, in seconds."""

    poll_s: float = 3.0
    prove_s: float = 60.0
    """Between two proofs of what serves."""
    retry_s: float = 1.0
    """Until the engine or the platform is tried again."""
    refused_s: float = 1.0
    """Until a refused version is tried again; doubles up to `max_refused_s`."""
    max_refused_s: float = 30.0
    drain_s: float = 10.0
    """That requests under way get when the supervisor is asked to stop."""


@dataclass(frozen=True, slots=True)
class SupervisorDeps:
    """What an engine supervisor works with."""

    host: EngineHost
    store: PolicyStore
    versions: Versions
    announcer: Announcer
    telemetry: ReloadTelemetry
    clock: Clock


class EngineSupervisor:
    """Drives one engine. `run` is its life; `look_now` may be called at any time."""

    def __init__(
        self, deps: SupervisorDeps, protocol: ReloadProtocol, pins: PinnedPolicies, timings: SupervisorTimings
    ) -> None:
        self._deps = deps
        self._protocol = protocol
        self._pins = pins
        self._timings = timings
        self._engine: EngineControl | None = None
        self._serving: ServedPolicy | None = None
        self._state = EngineState.STARTING
        self._reason = ""
        self._waiting_for = "the first version"
        self._refusals = RefusedVersions(timings, deps.clock)
        self._proven_s = deps.clock()
        """When what serves was proven last."""
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        """On the engine that runs: it ends when that died."""
        self._on_change: Callable[[], None] = _nothing

    def ready(self) -> str | None:
        """None while a proven version serves, else what the supervisor waits for."""
        if self._serving is None or self._engine is None:
            return self._waiting_for
        return None

    def facts(self) -> LeaseFacts | None:
        """What the lease may say now; None before the engine answers."""
        if not self._deps.host.base_url or self._serving is None:
            return None
        return LeaseFacts(
            self._deps.host.base_url, self._state, self._reason, self._serving, self._pins.facts()
        )

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have `listener` called whenever `facts` changed, so that the lease is not late."""
        self._on_change = listener

    def look_now(self) -> None:
        """An event reported that the channel or a pin moved: look now rather than at the next poll."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Start the engine and keep it; returns after `stop` is set and the engine is down. What it samples
        then is finished, within `drain_s`: the lease says at once that nothing more may be sent."""
        try:
            while not stop.is_set():
                await self._round(stop)
        finally:
            self._change(EngineState.STOPPING)
            try:
                if self._engine is not None:
                    await self._deps.host.drain(self._timings.drain_s)
            finally:
                await self._end_watch()
                self._pins.forget_engine()
                await self._deps.host.stop()

    async def _round(self, stop: asyncio.Event) -> None:
        """One round: the engine first, then the channel's version, then pins, then files, then wait."""
        pause_s = self._timings.poll_s
        try:
            if self._engine is None:
                await self._start()
            await self._follow()
            if self._engine is not None:
                await self._prove_again(self._engine)
                await self._pins.reconcile(self._engine, self._serving)
                self._on_change()
        except EngineBroken as error:
            log.error("engine_broken", extra={"why": str(error)})
            await self._lose_engine(str(error))
            pause_s = self._timings.retry_s
        except Unavailable as error:
            self._waiting_for = str(error)
            log.warning("supervisor_waits", extra={"why": str(error)})
            pause_s = self._timings.retry_s
        await self._deps.store.prune(self._in_use())
        await self._pause(stop, pause_s)

    async def _start(self) -> None:
        """Start on what served last, else on what the channel wants, else on what that falls back to."""
        served = [self._serving.policy.target] if self._serving else []
        for target in served or await self._deps.versions.current():
            if self._refusals.why_not_now(target) is not None:
                continue
            self._waiting_for = f"v{target.version} to be fetched, loaded and proven"
            try:
                self._engine = await self._start_on(target)
            except VersionRefused as error:
                await self._refuse(target, error)
                await self._deps.host.stop()
                continue
            return
        self._waiting_for = "a version of the channel that can be proven"
        raise Unavailable(self._waiting_for)

    async def _start_on(self, target: EngineTarget) -> EngineControl:
        policy = await self._deps.store.fetch(target)
        try:
            engine = await self._deps.host.start(policy)
            self._serving = await self._protocol.adopt(engine, policy)
            self._proven_s = self._deps.clock()
        except EngineBroken as error:
            raise VersionRefused(FailureKind.ENGINE_ERROR, str(error), may_pass_later=True) from error
        self._change(EngineState.READY)
        self._deps.telemetry.serves(target.version)
        await self._deps.announcer.ready(self._serving)
        return engine

    async def _follow(self) -> None:
        """Reload when the channel wants another version than the one that serves."""
        target, serving = (await self._deps.versions.current())[0], self._serving
        if serving is None or self._engine is None:
            return
        if target.version == serving.version and target.digest == serving.policy.target.digest:
            self._change(EngineState.READY)
            return
        if (refused := self._refusals.why_not_now(target)) is not None:
            self._change(EngineState.FAILED, str(refused))
            return
        try:
            with self._deps.telemetry.reloading(serving.version, target):
                if self._deps.host.keeps_weights:
                    await self._restart_on(target)
                else:
                    await self._reload(self._engine, serving, target)
        except VersionRefused as error:
            await self._refuse(target, error)
            self._change(EngineState.STARTING if self._engine is None else EngineState.FAILED, str(error))
        except EngineBroken as error:
            # The version may be what breaks it: not at once again after the restart.
            why = VersionRefused(FailureKind.ENGINE_ERROR, str(error), may_pass_later=True)
            await self._refuse(target, why)
            raise

    async def _prove_again(self, engine: EngineControl) -> None:
        """Once in a while: somebody may have paused it, or given it other weights. Raises EngineBroken."""
        if self._serving is not None and self._deps.clock() - self._proven_s >= self._timings.prove_s:
            await self._protocol.prove_again(engine, self._serving)
            self._proven_s = self._deps.clock()

    async def _reload(self, engine: EngineControl, serving: ServedPolicy, target: EngineTarget) -> None:
        started_s = self._deps.clock()
        policy = await self._deps.store.fetch(target)
        fetched_s = self._deps.clock()
        self._change(EngineState.RELOADING)
        self._serving, paused_s = await self._protocol.reload(engine, serving, policy)
        self._proven_s = self._deps.clock()
        self._change(EngineState.READY)
        done = Reloaded(serving.version, self._serving, fetched_s - started_s, paused_s)
        self._deps.telemetry.count_reload(done)
        extra = {"from": done.from_version, "version": target.version, "paused_s": round(paused_s, 4)}
        log.info("reloaded", extra=extra)
        await self._deps.announcer.reloaded(done)

    async def _restart_on(self, target: EngineTarget) -> None:
        """Serve it by a new process, as the engine cannot change its weights. Raises VersionRefused: then the
        next round starts one on what served."""
        await self._deps.store.fetch(target)
        why = f"v{target.version} to be served by a new process: this one keeps its weights"
        self._change(EngineState.STARTING, why)
        await self._deps.host.drain(self._timings.drain_s)
        await self._lose_engine(why)
        try:
            self._engine = await self._start_on(target)
        except VersionRefused:
            await self._deps.host.stop()
            raise

    def _in_use(self) -> list[Policy]:
        serving = [self._serving.policy] if self._serving is not None else []
        return [*serving, *self._pins.policies()]

    async def _refuse(self, target: EngineTarget, why: VersionRefused) -> None:
        extra = {"version": target.version, "kind": why.kind.value, "why": why.detail}
        log.error("version_refused", extra=extra)
        self._refusals.add(target, why)
        self._deps.versions.refused_target(target)
        self._deps.telemetry.count_refusal(why)
        await self._deps.announcer.reload_failed(self._serving, target.version, why)

    async def _lose_engine(self, why: str) -> None:
        self._engine = None
        await self._end_watch()
        self._pins.forget_engine()
        self._waiting_for = f"the engine to be started again: {why}"
        self._change(EngineState.STARTING, self._waiting_for)
        await self._deps.host.stop()

    async def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _change(self, state: EngineState, reason: str = "") -> None:
        self._state, self._reason = state, reason
        self._on_change()

    def _on_death(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            self._wake.set()

    async def _pause(self, stop: asyncio.Event, seconds: float) -> None:
        """Until something is wanted, the engine died, or `seconds` passed."""
        if self._engine is not None and self._watch is None:
            # One watch for the life of the engine: rounds may be shorter than the time between two looks.
            self._watch = asyncio.create_task(self._deps.host.died(), name="watch the engine")
            self._watch.add_done_callback(self._on_death)
        await pause(stop, seconds, self._wake)
        if self._engine is not None and not stop.is_set() and (why := self._deps.host.failure()):
            log.error("engine_died", extra={"why": why})
            await self._lose_engine(why)


class RefusedVersions:
    """Versions that were refused: for good when the version itself is bad, else for a growing while. The
    newest 64 are remembered: a channel wants one version, and falls back to two."""

    def __init__(self, timings: SupervisorTimings, clock: Clock) -> None:
        self._timings = timings
        self._clock = clock
        self._refused: OrderedDict[str, tuple[VersionRefused, float, float]] = OrderedDict()
        """By digest: the last refusal, until when it holds, and for how long it does."""

    def add(self, target: EngineTarget, why: VersionRefused) -> None:
        """Remember a refusal."""
        _, _, delay_s = self._refused.get(target.digest, (why, 0.0, self._timings.refused_s / 2))
        delay_s = min(delay_s * 2, self._timings.max_refused_s) if why.may_pass_later else math.inf
        # A copy: the error itself holds the frames it came through, and with them what they had loaded.
        said = VersionRefused(why.kind, why.detail, may_pass_later=why.may_pass_later)
        self._refused[target.digest] = (said, self._clock() + delay_s, delay_s)
        self._refused.move_to_end(target.digest)
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)

    def why_not_now(self, target: EngineTarget) -> VersionRefused | None:
        """The refusal for which the version should be left alone now."""
        why, until_s, _ = self._refused.get(target.digest, (None, 0.0, 0.0))
        return why if self._clock() < until_s else None


def _nothing() -> None:
    """Until a listener is set."""
