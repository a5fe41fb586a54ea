"""An engine, its process and the platform, all doing as a test says."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from blob_store import BlobRef
from engine_client import StagedScores
from identities.objects import PolicyFolder
from policy_engine.domain import (
    CanaryRow,
    EngineBroken,
    EngineTarget,
    FailureKind,
    LeaseFacts,
    Policy,
    Reloaded,
    ServedPolicy,
    VersionRefused,
)
from upcycle.errors import Unavailable

TRAINER_LOGPROBS = (-1.0, -2.0)


def target(version: int) -> EngineTarget:
    return EngineTarget(version, f"digest-{version}", BlobRef(f"k{version}", "0" * 64, 1))


def policy(version: int, *, logprobs: Sequence[float] = TRAINER_LOGPROBS, dtype: str = "float32") -> Policy:
    rows = (CanaryRow((1, 2, 3), tuple(logprobs)),)
    return Policy(target(version), Path(f"/policies/{version}"), rows, dtype, f"weights-{version}")


class EngineDouble:
    """Scores `TRAINER_LOGPROBS` plus what its weights are off; writes down every order."""

    def __init__(self, *, is_embedded: bool = True) -> None:
        """is_embedded: it answers while it is paused, and keeps other weights ready beside those that
        serve."""
        self.orders: list[str] = []
        self.off = {version: version * 1e-6 for version in range(20)}
        self.loaded = 0
        self.fails: dict[str, Exception] = {}
        self.paused = False
        """By somebody else."""
        self.busy: set[str] = set()
        """Pinned policies that still answer requests."""
        self._is_embedded = is_embedded
        self._staged = 0

    def _note(self, order: str) -> None:
        self.orders.append(order)
        for start, error in self.fails.items():
            if order.startswith(start):
                raise error

    async def pause(self, mode: str = "keep") -> None:
        self._note(f"pause {mode}")

    async def resume(self) -> None:
        self._note("resume")

    async def is_paused(self) -> bool:
        return self.paused

    async def reload_weights(self, directory: Path) -> None:
        self._note(f"reload {directory.name}")
        self.loaded = int(directory.name)

    async def stage_weights(self, directory: Path, rows: Sequence[Sequence[int]]) -> StagedScores | None:
        if not self._is_embedded:
            return None
        self._note(f"stage {directory.name}")
        self._staged = int(directory.name)
        return StagedScores(self._scores(self._staged, rows), self._scores(self.loaded, rows))

    async def swap_weights(self, directory: Path, label: str, *, recompute_running: bool) -> float:
        self._note(f"swap {directory.name} as {label}" + (", all" if recompute_running else ""))
        self.loaded = self._staged
        return 0.001

    async def forget_staged_weights(self) -> None:
        self._note("forget")

    async def update_weight_version(self, label: str) -> None:
        self._note(f"label {label}")

    async def reset_prefix_cache(self, *, recompute_running: bool = False) -> None:
        self._note("reset" + (" all" if recompute_running else ""))

    async def score_while_paused(
        self, rows: Sequence[Sequence[int]], *, model: str | None = None
    ) -> list[list[float]] | None:
        if not self._is_embedded:
            return None
        version = self.loaded if model is None else int(model.rpartition("v")[2])
        return self._scores(version, rows)

    def _scores(self, version: int, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[value + self.off[version] for value in TRAINER_LOGPROBS] for _ in rows]

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float]:
        return [value + self.off[self.loaded] for value in TRAINER_LOGPROBS]

    async def load_adapter(self, name: str, directory: Path) -> None:
        self._note(f"hold {name}")

    async def unload_adapter(self, name: str) -> None:
        self._note(f"drop {name}")
        while name in self.busy:
            await asyncio.sleep(0.01)


@dataclass
class HostDouble:
    """An engine process that starts when allowed."""

    engine: EngineDouble = field(default_factory=EngineDouble)
    base_url: str = "http://127.0.0.1:1"
    started: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
    dead: str | None = None
    watches: int = 0
    keeps_weights: bool = False

    async def start(self, chosen: Policy) -> EngineDouble:
        self.started.append(chosen.target.version)
        if chosen.target.version in self.broken:
            raise EngineBroken(f"v{chosen.target.version} does not start")
        self.dead = None
        self.engine.loaded = chosen.target.version
        return self.engine

    async def drain(self, limit_s: float) -> None:
        self.engine.orders.append(f"drain {limit_s:g}")

    async def stop(self) -> None:
        self.engine.orders.append("stop")

    def failure(self) -> str | None:
        return self.dead

    async def died(self) -> None:
        self.watches += 1
        while self.dead is None:
            await asyncio.sleep(0.005)

    def prepare(self, chosen: Policy) -> Path:
        return chosen.directory

    def prepare_held(self, chosen: Policy, serving: Policy) -> Path:
        return chosen.directory


@dataclass
class PlatformDouble:
    """Store, versions and announcements in memory."""

    wanted: list[int] = field(default_factory=lambda: [0])
    known: bool = True
    refused: dict[int, VersionRefused] = field(default_factory=dict)
    logprobs: dict[int, Sequence[float]] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    reloads: list[Reloaded] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    looks: int = 0
    fetches: list[int] = field(default_factory=list)
    published: dict[int, EngineTarget] = field(default_factory=dict)
    """Versions whose files a store has."""

    async def fetch(self, wanted: EngineTarget) -> Policy:
        self.fetches.append(wanted.version)
        if wanted.version in self.refused:
            raise self.refused[wanted.version]
        return policy(wanted.version, logprobs=self.logprobs.get(wanted.version, TRAINER_LOGPROBS))

    async def prune(self, keep: Sequence[Policy]) -> None:
        self.facts.append(f"keep {sorted(kept.target.version for kept in keep)}")

    async def current(self) -> list[EngineTarget]:
        self.looks += 1
        if not self.known:
            raise Unavailable("model 'm' to be imported")
        return [self._target(version) for version in self.wanted]

    def refused_target(self, target: EngineTarget) -> None:
        """Nothing: what is wanted is up to the test."""

    async def of_pin(self, wanted: PolicyFolder) -> EngineTarget:
        if wanted.version in self.removed:
            raise VersionRefused(FailureKind.VERSION_REMOVED, "removed", may_pass_later=False)
        return self._target(wanted.version)

    def _target(self, version: int) -> EngineTarget:
        return self.published.get(version, target(version))

    async def ready(self, serving: ServedPolicy) -> None:
        self.facts.append(f"ready {serving.version}")

    async def reloaded(self, done: Reloaded) -> None:
        self.reloads.append(done)
        self.facts.append(f"reloaded {done.from_version}->{done.serving.version}")

    async def reload_failed(self, serving: ServedPolicy | None, version: int, why: VersionRefused) -> None:
        self.facts.append(f"failed {version} {why.kind}")

    def serves(self, version: int) -> None:
        return None

    def reloading(self, from_version: int, wanted: EngineTarget) -> AbstractContextManager[None]:
        return nullcontext()

    def count_refusal(self, why: VersionRefused) -> None:
        return None

    def count_reload(self, done: Reloaded) -> None:
        return None

    async def renew_lease(self, facts: LeaseFacts, ttl_s: float) -> list[PolicyFolder]:
        return []
