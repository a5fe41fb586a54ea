"""Removes published versions that nobody needs: not the tree, not an engine, not a run."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from checkpoint_registry.domain.retention import PublishedVersion, RetentionPolicy, unneeded
from checkpoint_registry.ports import Clock, LeaseStore, ModelStore, Tasksets, VersionStore

_LEASE_GRACE: Final = timedelta(minutes=10)
"""An engine whose lease lapsed so recently may come back and load the version that it had."""

Named = tuple[str, int]
"""Model and version."""


class PruneVersions:
    """Sweeps over all models. What cannot be asked is needed: a peer that is away stops a sweep.

    A version goes at the earliest in the sweep after the one that first found it unneeded, so whoever looked
    it up has that long to say that it is needed; and everybody is asked again right before its manifest goes.
    A restart forgets what was found, which delays and harms nothing.
    """

    def __init__(
        self,
        stores: tuple[ModelStore, LeaseStore, VersionStore],
        tasksets: Tasksets,
        policy: RetentionPolicy,
        *,
        now: Clock,
    ) -> None:
        self._models, self._leases, self._versions = stores
        self._tasksets = tasksets
        self.policy = policy
        self._now = now
        self._found: frozenset[Named] = frozenset()

    async def sweep(self) -> dict[str, list[int]]:
        """Removed versions by model. Raises PeerUnavailable, PeerRefused, Unavailable, StoreTrouble.

        The store is read before those who need something are asked: a version that appears meanwhile is not
        looked at.
        """
        published: dict[str, list[PublishedVersion]] = {}
        for one in await self._versions.published():
            published.setdefault(one.model, []).append(one)
        needed, now = await self._needed(), self._now()
        unclaimed = frozenset(
            (model, version)
            for model in await self._known_models()
            for version in unneeded(published.get(model, []), _of(model, needed), self.policy, now)
        )
        going, self._found = self._found & unclaimed, unclaimed
        if not going:
            return {}
        removed = await self._versions.remove(_by_model(going), may_go=self._may_go)
        self._found -= removed
        return {model: sorted(versions) for model, versions in _by_model(removed).items()}

    async def _may_go(self, model: str, version: int) -> bool:
        """Whether nobody has named it since it was found."""
        return (model, version) not in await self._needed()

    async def _needed(self) -> set[Named]:
        """Planner first: its answer takes longest, and what is newest is known here."""
        pinned = await self._tasksets.pinned_versions()
        held = await self._leases.held_versions(self._now() - _LEASE_GRACE)
        tree = {
            (model, checkpoint.version)
            for model in await self._known_models()
            for checkpoint in await self._models.checkpoints(model)
        }
        return {*pinned, *held, *tree}

    async def _known_models(self) -> list[str]:
        return [model.model for model in await self._models.models()]


def _of(model: str, named: Collection[Named]) -> set[int]:
    return {version for name, version in named if name == model}


def _by_model(named: Collection[Named]) -> dict[str, set[int]]:
    return {model: _of(model, named) for model in sorted({model for model, _ in named})}
