"""Removes published versions that neither the tree, nor an engine, nor a hold, nor a run needs."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from checkpoint_registry.adapters.sql_holds import SqlHoldStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.retention import ListedVersion, RetentionPolicy, beyond_newest, may_go
from checkpoint_registry.ports import Clock, Tasksets
from identities.objects import PolicyFolder

_LEASE_GRACE: Final = timedelta(minutes=10)
"""An engine whose lease lapsed so recently may come back and load the version that it had."""


@dataclass(frozen=True, slots=True)
class RetentionDeps:
    """Who needs versions (tree, engines, holds, runs), and where versions lie (rows, files)."""

    models: SqlModelStore
    leases: SqlLeaseStore
    holds: SqlHoldStore
    tasksets: Tasksets
    versions: SqlVersionStore
    files: VersionFiles


class PruneVersions:
    """Sweeps over all models. A peer that cannot be asked stops the sweep, as it may need any version.

    A version is removed at the earliest in the sweep after the one that first found it unneeded, so a reader
    that looked it up has that long to name it; and all are asked again right before its manifest is deleted.
    A restart loses what was found: removal begins later.
    """

    def __init__(self, deps: RetentionDeps, policy: RetentionPolicy, *, now: Clock) -> None:
        self._deps = deps
        self.policy = policy
        self._now = now
        self._found: frozenset[PolicyFolder] = frozenset()
        # A checkpoint never leaves the tree, so what was found there is not asked for again.
        self._in_tree: frozenset[PolicyFolder] = frozenset()

    async def sweep(self) -> dict[str, list[int]]:
        """Removed versions by model. Raises Unavailable, PeerRefused.

        The store is listed before those who need something are asked: a version that appears meanwhile is not
        looked at.
        """
        listed: dict[str, list[ListedVersion]] = {}
        for one in await self._deps.files.published():
            listed.setdefault(one.model, []).append(one)
        models = await self._deps.models.names()
        old = {
            PolicyFolder(model, version)
            for model in models
            for version in beyond_newest(listed.get(model, ()), self.policy)
        }
        unclaimed = await self._unclaimed(old)
        going, self._found = self._found & unclaimed, unclaimed
        if not going:
            return {}
        removed = await self._deps.files.remove(_by_model(going), may_go=self._may_go)
        self._found -= removed
        return {model: sorted(versions) for model, versions in _by_model(removed).items()}

    async def _unclaimed(self, old: set[PolicyFolder]) -> frozenset[PolicyFolder]:
        """Those that nothing needs; only what is not known to be in the tree is asked for, and read."""
        self._in_tree &= old
        unneeded = await self._unneeded(old - self._in_tree)
        now = self._now()
        stored = [(folder, await self._deps.files.stored(folder)) for folder in sorted(unneeded)]
        return frozenset(folder for folder, one in stored if may_go(one, self.policy, now))

    async def _may_go(self, folder: PolicyFolder) -> bool:
        """Ask once more whether the version is needed; if not, mark its row before its files go."""
        if not await self._unneeded({folder}):
            return False
        return await self._deps.versions.mark_removed(*folder, self._now())

    async def _unneeded(self, asked: set[PolicyFolder]) -> set[PolicyFolder]:
        """By planner and engines, and by the tree. Planner first: its answer takes longest, and what is
        newest is known here."""
        pinned = await self._deps.tasksets.pinned_versions()
        held = await self._deps.leases.held_versions(self._now() - _LEASE_GRACE)
        holds = {one.policy for one in await self._deps.holds.live(self._now())}
        unsaved = await self._deps.versions.unsaved(asked)
        self._in_tree |= asked - unsaved
        return unsaved.difference(pinned, held, holds)


def _by_model(named: Collection[PolicyFolder]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for model, version in named:
        found.setdefault(model, set()).add(version)
    return dict(sorted(found.items()))
