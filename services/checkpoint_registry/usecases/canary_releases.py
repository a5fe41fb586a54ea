"""Canary releases: an operator has a share of a model's conversations served by a checkpoint beside head."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.domain.errors import RegistryError
from checkpoint_registry.domain.models import CanaryRelease, EngineLease, validate_author, validate_slug
from checkpoint_registry.ports import Clock
from service_kit.errors import InvalidRequest

log = logging.getLogger(__name__)

_HELD: Final = timedelta(hours=1)
"""A hold is extended long before; it ends with its release, and outlives a restart of the registry."""


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """Who wants which checkpoint to answer which share of the conversations, and unseen which share of the
    other requests, and why. `actor` is not checked; `caller` is whose key it came with."""

    model: str
    checkpoint_id: str
    share: float
    shadow_share: float
    actor: str
    reason: str
    caller: str

    def validate(self) -> None:
        """Raises InvalidRequest."""
        validate_slug(self.model)
        validate_author(self.actor, self.reason, "releases it")
        if not 0 <= self.share < 1:
            raise InvalidRequest(
                f"share {self.share:g} is not below 1 and at least 0; `upcycle models head {self.model} "
                "--set` has a checkpoint answer everything"
            )
        if not 0 <= self.shadow_share <= 1:
            raise InvalidRequest(f"shadow_share {self.shadow_share:g} is not in 0..1")
        if self.share == self.shadow_share == 0:
            raise InvalidRequest(
                "share and shadow_share are 0, so the checkpoint would answer nothing; "
                f"`upcycle models canary {self.model} --end` ends a release"
            )


class CanaryReleases:
    """Begins, changes and ends them, and keeps their versions held."""

    def __init__(self, store: SqlCanaryReleases, *, now: Clock) -> None:
        self._store = store
        self._now = now

    async def set_release(
        self, order: ReleaseOrder, *, head_revision: int | None, changes: bool = True
    ) -> tuple[CanaryRelease, EngineLease]:
        """The release and the engine that is to serve it. changes: one that is under way may be changed.
        Raises InvalidRequest, UnknownModel, UnknownCheckpoint, HeadMoved, AlreadyHead, ReleaseUnderWay,
        VersionRemoved, NoEngine, OtherBase, NoRoom."""
        order.validate()
        now = self._now()
        actor = f"{order.actor} ({order.caller})"
        wanted = CanaryRelease(
            model=order.model,
            revision=0,
            checkpoint_id=order.checkpoint_id,
            version=0,
            share=order.share,
            actor=actor,
            reason=order.reason,
            changed_at=now,
            shadow_share=order.shadow_share,
        )
        done, lease = await self._store.set_release(
            wanted, head_revision=head_revision, until=now + _HELD, changes=changes
        )
        log.info("canary_release_set", extra={"model": done.model, "version": done.version})
        return done, lease

    async def end(
        self, model: str, *, actor: str, reason: str, caller: str, revision: int | None = None
    ) -> CanaryRelease:
        """revision: of the release that is meant; None: whichever is under way. Raises InvalidRequest,
        UnknownModel, NoCanaryRelease."""
        validate_slug(model)
        validate_author(actor, reason, "ends it")
        by = f"{actor} ({caller})"
        return await self._store.end(model, actor=by, reason=reason, at=self._now(), revision=revision)

    async def changes(self, model: str) -> list[CanaryRelease]:
        """The audit, oldest first. Raises UnknownModel."""
        return await self._store.changes(model)

    async def keep_held(self) -> None:
        """Extend the holds of all releases; where an engine is gone another one takes its version."""
        for release in await self._store.under_way():
            now = self._now()
            try:
                await self._store.keep_held(release, now=now, until=now + _HELD)
            except RegistryError as error:
                # Head answers meanwhile; the next look tries again.
                why = {"model": release.model, "version": release.version, "why": str(error)}
                log.warning("canary_release_not_held", extra=why)
