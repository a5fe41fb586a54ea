"""Removes published versions that neither the tree, nor an engine, nor a run needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.retention import RetentionPolicy, StoredVersion, unneeded
from checkpoint_registry.ports import Clock, Tasksets

_LEASE_GRACE: Final = timedelta(minutes=10)
"""An engine whose lease lapsed so recently may come back and load the version that it had."""

Named = tuple[str, int]
"""Model and version."""


@dataclass(frozen=True, slots=True)
class RetentionDeps:
    """Who needs versions (tree, engines, runs), and where versions lie (rows, files)."""

    models: SqlModelStore
    leases: SqlLeaseStore
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
        self._found: frozenset[Named] = frozenset()

    async def sweep(self) -> dict[str, list[int]]:
        """Removed versions by model. Raises Unavailable, PeerRefused.

        The store is read before those who need something are asked: a version that appears meanwhile is not
        looked at.
        """
        published: dict[str, list[StoredVersion]] = {}
        for one in await self._deps.files.published():
            published.setdefault(one.model, []).append(one)
        models = await self._known_models()
        needed, now = _by_model(await self._needed(models)), self._now()
        unclaimed = frozenset(
            (model, version)
            for model in models
            for version in unneeded(published.get(model, []), needed.get(model, set()), self.policy, now)
        )
        going, self._found = self._found & unclaimed, unclaimed
        if not going:
            return {}
        removed = await self._deps.files.remove(_by_model(going), may_go=self._may_go)
        self._found -= removed
        return {model: sorted(versions) for model, versions in _by_model(removed).items()}

    async def _may_go(self, model: str, version: int) -> bool:
        """Ask once more whether the version is needed; if not, mark its row before its files go."""
        if (model, version) in await self._needed([model]):
            return False
        await self._deps.versions.mark_removed(model, version, self._now())
        return True

    async def _needed(self, models: Sequence[str]) -> set[Named]:
        """By planner and engines, and in the trees of these models. Planner first: its answer takes longest,
        and what is newest is known here."""
        pinned = await self._deps.tasksets.pinned_versions()
        held = await self._deps.leases.held_versions(self._now() - _LEASE_GRACE)
        tree = {
            (model, checkpoint.version)
            for model in models
            for checkpoint in await self._deps.models.checkpoints(model)
        }
        return {*pinned, *held, *tree}

    async def _known_models(self) -> list[str]:
        return await self._deps.models.names()


def _by_model(named: Collection[Named]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for model, version in named:
        found.setdefault(model, set()).add(version)
    return dict(sorted(found.items()))
