"""Policies served beside the channel's version: pinned by evaluation runs, or held for a named holder.

Runs come and go by events, holds with each renewal of the lease; `reconcile` brings the engine to what they
need, and keeps a policy that is not needed any more until its place is: the gate evaluates one head version
again and again.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from engine_client import EngineError, EngineUnavailable, pinned_name
from identities.objects import PolicyFolder
from policy_engine.domain import EngineBroken, HeldFacts, PinRequests, Policy, ServedPolicy, VersionRefused
from policy_engine.ports import Announcer, EngineControl, PolicyStore, Versions
from policy_engine.usecases.reload import ReloadProtocol
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_UNLOAD_S: Final = 0.5
"""How long the supervisor waits for an engine to drop a policy before it goes on with other things."""


@dataclass(slots=True)
class _HeldPolicy:
    policy: Policy
    last_needed: int


@dataclass(frozen=True, slots=True)
class _LeavingPolicy:
    held: _HeldPolicy
    unloaded: "asyncio.Task[None]"


@dataclass(frozen=True, slots=True)
class PinDeps:
    """Where these versions come from, and where a refusal is published."""

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
        self._held: dict[PolicyFolder, _HeldPolicy] = {}
        self._refused: set[PolicyFolder] = set()
        self._failures: dict[PolicyFolder, str] = {}
        self._leaving: dict[PolicyFolder, _LeavingPolicy] = {}
        """What the engine was told to drop, and still answers requests with."""
        self._round = 0

    def facts(self) -> HeldFacts:
        """What the lease says of them."""
        held, pinned = tuple(sorted(self._held)), tuple(self._requests.versions())
        return HeldFacts(held, self._max_held, pinned, dict(self._failures))

    def policies(self) -> list[Policy]:
        """Their files, which must stay on disk."""
        return [held.policy for held in self._held.values()]

    def forget_engine(self) -> None:
        """The engine was restarted: it holds nothing beside its channel's version."""
        self._held.clear()
        self._refused.clear()
        for leaving in self._leaving.values():
            leaving.unloaded.cancel()
        self._leaving.clear()

    async def reconcile(self, engine: EngineControl, serving: ServedPolicy | None) -> None:
        """Load what is needed as far as there is room. Raises EngineBroken when unloading fails."""
        if self._max_held == 0 or serving is None:
            return
        self._see_what_left()
        self._round += 1
        wanted = self._requests.needed(self._model)
        self._refused.intersection_update(wanted)
        self._failures = {one: why for one, why in self._failures.items() if one in wanted}
        needed = wanted[: self._max_held]
        for one in needed:
            if one in self._held:
                self._held[one].last_needed = self._round
            else:
                await self._load(engine, one, serving, needed)

    async def _load(
        self, engine: EngineControl, wanted: PolicyFolder, serving: ServedPolicy, needed: list[PolicyFolder]
    ) -> None:
        if wanted in self._refused:
            return
        said = {"policy_model": wanted.model, "version": wanted.version}
        try:
            target = await self._deps.versions.of_pin(wanted)
            await self._make_room(engine, wanted, needed)
            if wanted in self._held:  # the engine was not told to drop it in time
                return
            policy = await self._deps.store.fetch(target)
            await self._protocol.hold(engine, policy, wanted.model, serving)
        except Unavailable as error:
            self._failures[wanted] = f"it waits for {error}"
            log.warning("pin_waits", extra={**said, "why": str(error)})
            return
        except VersionRefused as error:
            self._failures[wanted] = str(error)
            if not error.may_pass_later:
                self._refused.add(wanted)
            log.warning("pin_not_loaded", extra={**said, "why": str(error)})
            if wanted.model == self._model:  # the fact is about versions of the engine's own model
                await self._deps.announcer.reload_failed(serving, wanted.version, error)
            return
        self._held[wanted] = _HeldPolicy(policy, self._round)
        self._failures.pop(wanted, None)
        log.info("pin_loaded", extra={**said, "digest": target.digest})

    async def _make_room(
        self, engine: EngineControl, wanted: PolicyFolder, needed: list[PolicyFolder]
    ) -> None:
        """Raises Unavailable while the engine still answers requests with what has to go: promotions and
        other pins do not wait for the longest of them. Raises EngineBroken."""
        while len(self._held) + len(self._leaving) >= self._max_held or wanted in self._leaving:
            if not self._leaving:
                idle = [one for one in self._held if one not in needed]
                oldest = min(idle, key=lambda one: self._held[one].last_needed)
                unloading = asyncio.create_task(engine.unload_adapter(pinned_name(*oldest)))
                self._leaving[oldest] = _LeavingPolicy(self._held.pop(oldest), unloading)
            await asyncio.wait([one.unloaded for one in self._leaving.values()], timeout=_UNLOAD_S)
            if not self._see_what_left():
                names = " and ".join(pinned_name(*one) for one in self._leaving)
                raise Unavailable(f"a place in the engine: requests with {names} have not ended")

    def _see_what_left(self) -> bool:
        """Whether something did. Raises EngineBroken."""
        ended = [(one, leaving) for one, leaving in self._leaving.items() if leaving.unloaded.done()]
        for one, leaving in ended:
            del self._leaving[one]
            error = leaving.unloaded.exception()
            if isinstance(error, EngineUnavailable):  # not in time: it has it, and is told again
                self._held[one] = leaving.held
            elif isinstance(error, EngineError):
                raise EngineBroken(f"{pinned_name(*one)} cannot be unloaded: {error}") from error
            elif error is not None:
                raise error
        return bool(ended)
