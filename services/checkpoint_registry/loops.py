"""The registry's loops: one drives the gate, one removes old versions, one looks for facts that were lost,
one keeps the versions of canary releases held, one reads the graded sessions of such releases.

On stop, the transaction in progress commits or rolls back; an abandoned sweep is continued by the next one.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint_registry import telemetry
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.usecases.canary_releases import CanaryReleases
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from checkpoint_registry.usecases.retention import PruneVersions
from checkpoint_registry.usecases.rollback import WatchHead
from checkpoint_registry.usecases.session_watching import WatchSessions
from checkpoint_registry.usecases.watching import WatchHeads
from service_kit.loops import one_piece, pause, until_stopped
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

HELD_RELEASES_S = 10.0
"""Between two looks whether the versions of canary releases are held."""
LOST_FACTS_S = 120.0
"""Between two looks, each of which lists the files of all versions."""
# Steps that one candidate can take in one go; more would mean that a step does not record what it did.
_MAX_STEPS = 64


class GateWakeups:
    """Models that the gate should look at before its next poll."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._models: set[str] = set()

    def wake(self, models: Sequence[str]) -> None:
        """Have the gate look at these models soon; more calls than needed do no harm."""
        self._models.update(models)
        self.event.set()

    def take(self) -> set[str]:
        """The models named since the last call."""
        models, self._models = self._models, set()
        return models


@dataclass(frozen=True, slots=True)
class GateLoopDeps:
    """What the gate's loop reads and drives."""

    gate: RunGate
    head: WatchHead
    watch: WatchHeads
    jobs: SqlGateStore
    watches: SqlWatchStore
    wakeups: GateWakeups


class GateLoop:
    """Runs the gate for each model that has a candidate under way, one model at a time.

    Facts wake it; it also polls, in case a fact was lost.
    """

    def __init__(self, deps: GateLoopDeps, *, poll_s: float) -> None:
        self._deps = deps
        self._poll_s = poll_s
        self._is_first_round = True
        self._unfinished: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        wake = self._deps.wakeups.event
        await until_stopped(stop, self._round, every_s=self._poll_s, wake=wake, waiting="gate_waits")

    async def _round(self) -> None:
        """Drive each model; raises Unavailable at the end if one of them has to be tried again.

        A bug, or a row that nothing can read, stops the gate of its model only.
        """
        self._unfinished |= self._deps.wakeups.take() | await self._due()
        trouble: Exception | None = None
        for model in sorted(self._unfinished):
            try:
                with one_piece(f"gate of {model!r}"):
                    await self._drive(model)
            except Unavailable as error:
                trouble = error
            else:
                self._unfinished.discard(model)
        if trouble is not None:
            raise trouble

    async def _due(self) -> set[str]:
        """Models with a candidate under way, or with a head that is watched; at first also those whose head
        was evaluated since the gate promoted it: that may have come just before a crash."""
        due = set(await self._deps.jobs.models_with_open_jobs())
        due |= set(await self._deps.watches.watched_models())
        if self._is_first_round:
            due |= set(await self._deps.jobs.models_evaluated_since_promotion())
            self._is_first_round = False
        return due

    async def _drive(self, model: str) -> None:
        await self._deps.head.consider(model)
        for _ in range(_MAX_STEPS):
            if not await self._deps.gate.advance(model):
                await self._deps.watch.consider(model)
                return
        raise RuntimeError(f"the gate of {model!r} took {_MAX_STEPS} steps in one go; a step is not recorded")


class LostFactsLoop:
    """Looks whether the trainer announced something that is not recorded here."""

    def __init__(self, take: TakeLostFacts) -> None:
        self._take = take

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the object store is unavailable, the loop waits for it."""
        await until_stopped(stop, self._take.look, every_s=LOST_FACTS_S, waiting="lost_facts_unknown")


class HeldReleasesLoop:
    """Keeps the versions of canary releases held, also after their engine is gone."""

    def __init__(self, releases: CanaryReleases) -> None:
        self._releases = releases

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        keep = self._releases.keep_held
        await until_stopped(stop, keep, every_s=HELD_RELEASES_S, waiting="canary_releases_wait")


class SessionWatchLoop:
    """Looks at what production says of the versions between which a canary release divides it."""

    def __init__(self, watch: WatchSessions, *, every_s: float) -> None:
        self._watch = watch
        self._every_s = every_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        await until_stopped(stop, self._watch.look, every_s=self._every_s, waiting="sessions_not_read")


class RetentionLoop:
    """Removes old versions. A sweep that fails is tried again at the next turn: old versions do no harm."""

    def __init__(self, prune: PruneVersions, *, every_s: float) -> None:
        self._prune = prune
        self._every_s = every_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; the first sweep comes after the first interval."""
        if await pause(stop, self._every_s):
            await until_stopped(stop, self._sweep, every_s=self._every_s, waiting="sweep_waits")

    async def _sweep(self) -> None:
        try:
            with one_piece("sweep of old versions"):
                removed = await self._prune.sweep()
        except Unavailable:
            telemetry.SWEEP_FAILURES.inc()
            raise
        telemetry.versions_removed(removed)
        for model, versions in removed.items():
            log.info("versions_removed", extra={"model": model, "versions": versions})
