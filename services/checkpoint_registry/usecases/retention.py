"""Removes published versions that nobody needs: not the tree, not an engine, not a run."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from checkpoint_registry.domain.retention import PublishedVersion, RetentionPolicy, unneeded
from checkpoint_registry.ports import Clock, LeaseStore, ModelStore, Tasksets, VersionStore

_LEASE_GRACE: Final = timedelta(minutes=10)
"""An engine whose lease lapsed so recently may come back and load the version that it had."""


class PruneVersions:
    """One sweep over all models. What cannot be asked is needed: a peer that is away stops the sweep."""

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
        self._policy = policy
        self._now = now

    async def sweep(self) -> dict[str, list[int]]:
        """Removed versions by model. Raises PeerUnavailable, PeerRefused, StoreError, StoreTrouble.

        The store is read before those who need something are asked: a version that appears meanwhile is not
        looked at. Only an evaluation that is pinned, within the sweep, to an old version that is no
        checkpoint can find it gone.
        """
        published: dict[str, list[PublishedVersion]] = {}
        for one in await self._versions.published():
            published.setdefault(one.model, []).append(one)
        pinned = await self._tasksets.pinned_versions()
        held = await self._leases.held_versions(self._now() - _LEASE_GRACE)
        gone: dict[str, list[int]] = {}
        for model in await self._models.models():
            needed = {checkpoint.version for checkpoint in await self._models.checkpoints(model.model)}
            needed |= {version for name, version in held | pinned if name == model.model}
            if versions := self._unneeded(published.get(model.model, []), needed):
                gone[model.model] = versions
        if gone:
            await self._versions.remove(gone)
        return gone

    def _unneeded(self, published: Sequence[PublishedVersion], needed: set[int]) -> list[int]:
        return unneeded(published, needed, self._policy, self._now())
