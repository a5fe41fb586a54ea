"""Versions pinned by evaluation runs, served beside the channel's version for as long as a run needs them.

Runs come and go by events; `reconcile` brings the engine to what they need, oldest run first, and keeps a
finished run's version until its place is needed: the gate evaluates one head version again and again.
"""

import logging
from dataclasses import dataclass

from engine_client import EngineError, pinned_name
from policy_engine.domain import EngineBroken, PinRequests, Policy, ServedPolicy, VersionRefused
from policy_engine.ports import Announcer, EngineControl, PolicyStore, Versions
from policy_engine.usecases.reload import ReloadProtocol
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _HeldPolicy:
    policy: Policy
    last_needed: int


@dataclass(frozen=True, slots=True)
class PinDeps:
    """Where pinned versions come from, and where a refusal is published."""

    store: PolicyStore
    versions: Versions
    announcer: Announcer


class PinnedPolicies:
    """What the engine holds beside its channel's version."""

    def __init__(
        self, model: str, requests: PinRequests, deps: PinDeps, protocol: ReloadProtocol, *, max_held: int
    ) -> None:
        """`max_held`: 0 on engines that cannot hold several versions."""
        self._model = model
        self._requests = requests
        self._deps = deps
        self._protocol = protocol
        self._max_held = max_held
        self._held: dict[int, _HeldPolicy] = {}
        self._refused: set[int] = set()
        self._round = 0

    def held(self) -> tuple[int, ...]:
        """Versions that are loaded and proven."""
        return tuple(sorted(self._held))

    def policies(self) -> list[Policy]:
        """Their files, which must stay on disk."""
        return [held.policy for held in self._held.values()]

    def forget_engine(self) -> None:
        """The engine was restarted: it holds no pinned version."""
        self._held.clear()

    async def reconcile(self, engine: EngineControl, serving: ServedPolicy | None) -> None:
        """Load what runs need as far as there is room. Raises EngineBroken when unloading fails."""
        if self._max_held == 0:
            return
        self._round += 1
        pinned = self._requests.versions()
        self._refused.intersection_update(pinned)
        needed = pinned[: self._max_held]
        for version in needed:
            if version in self._held:
                self._held[version].last_needed = self._round
            else:
                await self._load(engine, version, serving, needed)

    async def _load(
        self, engine: EngineControl, version: int, serving: ServedPolicy | None, needed: list[int]
    ) -> None:
        if version in self._refused:
            return
        try:
            target = await self._deps.versions.of_pin(version)
            await self._make_room(engine, needed)
            policy = await self._deps.store.fetch(target)
            await self._protocol.hold(engine, policy)
        except Unavailable as error:
            log.warning("pin_waits", extra={"version": version, "why": str(error)})
            return
        except VersionRefused as error:
            if not error.may_pass_later:
                self._refused.add(version)
            await self._deps.announcer.reload_failed(serving, version, error)
            return
        self._held[version] = _HeldPolicy(policy, self._round)
        log.info("pin_loaded", extra={"version": version, "digest": target.digest})

    async def _make_room(self, engine: EngineControl, needed: list[int]) -> None:
        while len(self._held) >= self._max_held:
            idle = [version for version in self._held if version not in needed]
            oldest = min(idle, key=lambda version: self._held[version].last_needed)
            del self._held[oldest]
            try:
                await engine.unload_adapter(pinned_name(self._model, oldest))
            except EngineError as error:
                raise EngineBroken(f"pinned v{oldest} cannot be unloaded: {error}") from error
