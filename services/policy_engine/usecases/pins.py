"""Versions pinned by evaluation runs, served beside the channel's version for as long as a run needs them.

Runs come and go by events; `reconcile` brings the engine to what they need, oldest run first, and keeps a
finished run's version until its place is needed: the gate evaluates one head version again and again.
"""

import logging
from dataclasses import dataclass, field

from engine_client import EngineError, pinned_name
from policy_engine.domain import (
    EngineBroken,
    ModelUnknown,
    PlatformUnavailable,
    Policy,
    Serving,
    Target,
    VersionRefused,
)
from policy_engine.ports import Announcer, Engine, PolicyStore, Versions
from policy_engine.usecases.reload import ReloadProtocol

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    policy: Policy
    last_needed: int


@dataclass(slots=True)
class PinRequests:
    """Which runs need which version, in the order in which they were submitted."""

    _version_of_run: dict[str, int] = field(default_factory=dict)

    def submitted(self, run_id: str, version: int) -> None:
        """An evaluation run pins a version."""
        self._version_of_run[run_id] = version

    def finished(self, run_id: str) -> None:
        """It needs it no more."""
        self._version_of_run.pop(run_id, None)

    def versions(self) -> list[int]:
        """Needed versions, each once, longest waiting first."""
        return list(dict.fromkeys(self._version_of_run.values()))


class Pins:
    """What the engine holds beside its channel's version."""

    def __init__(
        self,
        model: str,
        requests: PinRequests,
        world: tuple[PolicyStore, Versions, Announcer],
        protocol: ReloadProtocol,
        *,
        max_held: int,
    ) -> None:
        """`max_held`: 0 on engines that cannot hold several versions."""
        self._model = model
        self._requests = requests
        self._store, self._versions, self._announcer = world
        self._protocol = protocol
        self._max_held = max_held
        self._held: dict[int, _Held] = {}
        self._refused: set[str] = set()
        self._round = 0

    def held(self) -> tuple[int, ...]:
        """Versions that are loaded and proven."""
        return tuple(sorted(self._held))

    def policies(self) -> list[Policy]:
        """Their files, which must stay on disk."""
        return [held.policy for held in self._held.values()]

    def forget_engine(self) -> None:
        """The engine was started anew: it holds nothing."""
        self._held.clear()

    async def reconcile(self, engine: Engine, serving: Serving | None) -> None:
        """Load what runs need as far as there is room. Raises EngineBroken when unloading fails."""
        if self._max_held == 0:
            return
        self._round += 1
        needed = self._requests.versions()[: self._max_held]
        for version in needed:
            if version in self._held:
                self._held[version].last_needed = self._round
            else:
                await self._load(engine, version, serving, needed)

    async def _load(self, engine: Engine, version: int, serving: Serving | None, needed: list[int]) -> None:
        try:
            target = await self._versions.find(version)
        except (PlatformUnavailable, ModelUnknown) as error:
            log.warning("pin_waits", extra={"version": version, "why": str(error)})
            return
        if target.digest in self._refused:
            return
        try:
            await self._make_room(engine, needed)
            policy = await self._store.fetch(target)
            await self._protocol.hold(engine, policy)
        except VersionRefused as error:
            await self._refuse(serving, target, error)
            return
        self._held[version] = _Held(policy, self._round)
        log.info("pin_loaded", extra={"version": version, "digest": target.digest})

    async def _refuse(self, serving: Serving | None, target: Target, error: VersionRefused) -> None:
        if not error.may_pass_later:
            self._refused.add(target.digest)
        await self._announcer.reload_failed(serving, target, error)

    async def _make_room(self, engine: Engine, needed: list[int]) -> None:
        while len(self._held) >= self._max_held:
            idle = [version for version in self._held if version not in needed]
            oldest = min(idle, key=lambda version: self._held[version].last_needed)
            del self._held[oldest]
            try:
                await engine.unload_adapter(pinned_name(self._model, oldest))
            except EngineError as error:
                raise EngineBroken(f"pinned v{oldest} cannot be unloaded: {error}") from error
