"""The dependencies of the use cases."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

from engine_client import StagedScores
from identities.objects import PolicyFolder
from policy_engine.domain import EngineTarget, LeaseFacts, Policy, Reloaded, ServedPolicy, VersionRefused

Clock = Callable[[], float]
"""Monotonic seconds."""


class EngineControl(Protocol):
    """The engine on the wire (engine_client.EngineClient). Raises engine_client.EngineError."""

    async def pause(self, mode: Literal["keep", "wait", "abort"] = "keep") -> None: ...

    async def resume(self) -> None: ...

    async def is_paused(self) -> bool: ...

    async def reload_weights(self, directory: Path) -> None: ...

    async def stage_weights(self, directory: Path, rows: Sequence[Sequence[int]]) -> StagedScores | None: ...

    async def swap_weights(self, directory: Path, label: str, *, recompute_running: bool) -> float: ...

    async def forget_staged_weights(self) -> None: ...

    async def update_weight_version(self, label: str) -> None: ...

    async def reset_prefix_cache(self, *, recompute_running: bool = False) -> None: ...

    async def score_while_paused(
        self, rows: Sequence[Sequence[int]], *, model: str | None = None
    ) -> list[list[float]] | None: ...

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float]: ...

    async def load_adapter(self, name: str, directory: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


class EngineHost(Protocol):
    """The engine as a process."""

    @property
    def base_url(self) -> str:
        """Where it answers; empty before the first start."""

    async def start(self, policy: Policy) -> EngineControl:
        """Start it on a policy and return once it is healthy. Raises EngineBroken."""

    async def drain(self, limit_s: float) -> None:
        """Let the requests that it has end, for `limit_s` at most, before it is stopped."""

    async def stop(self) -> None:
        """End it and what it started."""

    def failure(self) -> str | None:
        """Why it is dead, or None while it lives."""

    async def died(self) -> None:
        """Return when it died without being stopped."""

    def prepare(self, policy: Policy) -> Path:
        """The directory to load for a policy, as this engine can reload it. Raises VersionRefused."""

    def prepare_held(self, policy: Policy, serving: Policy) -> Path:
        """The directory to load to hold a policy beside the one that serves. Raises VersionRefused."""

    @property
    def keeps_weights(self) -> bool:
        """Its weights cannot be changed in place: it is started again for others."""


class PolicyStore(Protocol):
    """Published versions. Raises VersionRefused (fetch_failed, digest_mismatch)."""

    async def fetch(self, target: EngineTarget) -> Policy:
        """All files of a version on local disk, checked."""

    async def prune(self, keep: Sequence[Policy]) -> None:
        """Free disk from versions that are used no more; called after every round, and cheap where nothing
        was fetched since."""


class Versions(Protocol):
    """Which versions exist. Raises Unavailable."""

    async def current(self) -> list[EngineTarget]:
        """What the channel wants now, best first; the later ones are what to fall back to at start."""

    def refused_target(self, target: EngineTarget) -> None:
        """A version of `current` could not be served."""

    async def of_pin(self, policy: PolicyFolder) -> EngineTarget:
        """A version that a run pins or the registry has held. Raises VersionRefused for one that was
        removed."""


class Announcer(Protocol):
    """Publishes facts about the engine, and renews its lease."""

    async def ready(self, serving: ServedPolicy) -> None: ...

    async def reloaded(self, done: Reloaded) -> None: ...

    async def reload_failed(
        self, serving: ServedPolicy | None, version: int, why: VersionRefused
    ) -> None: ...

    async def renew_lease(self, facts: LeaseFacts, ttl_s: float) -> list[PolicyFolder]:
        """What the registry has this engine hold."""
        ...


class ReloadTelemetry(Protocol):
    """Metrics and spans."""

    def serves(self, version: int) -> None: ...

    def reloading(self, from_version: int, target: EngineTarget) -> AbstractContextManager[None]: ...

    def count_reload(self, done: Reloaded) -> None: ...

    def count_refusal(self, why: VersionRefused) -> None: ...
