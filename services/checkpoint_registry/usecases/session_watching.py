"""Watches production: where a canary release divides graded sessions between head and another checkpoint, the
newer of the two loses its place when they show that it is worse. A canary's release ends; head goes back to
its predecessor, where that is the other one.

What is known of a release is read again from the trajectory store after a restart.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from checkpoint_registry import telemetry
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.errors import NoCanaryRelease, RegistryError
from checkpoint_registry.domain.jobs import GATE_ACTOR
from checkpoint_registry.domain.models import CanaryRelease, Model
from checkpoint_registry.domain.session_watch import ALPHA, FAMILY, GradedSession, SessionWatch, began
from checkpoint_registry.ports import Clock, GradedSessions
from checkpoint_registry.usecases.canary_releases import CanaryReleases, ReleaseOrder
from checkpoint_registry.usecases.rollback import roll_back
from upcycle.gate.watch import Watch

log = logging.getLogger(__name__)

_CALLER: Final = "the registry"
_OURS: Final = f"{GATE_ACTOR} ({_CALLER})"
"""Who began a release that this watch began: a person may be called `gate`, with another caller."""
_LATE: Final = timedelta(seconds=60)
"""So much later than its moment a reward may be listed."""


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """share: of the conversations that the predecessor of a new head answers, so that there is something to
    compare; 0: operators alone begin releases. pairs: after which such a release ends undecided."""

    share: float = 0.0
    pairs: int = 2000


@dataclass(frozen=True, slots=True)
class _Followed:
    """A release since one moment. seen: what was graded lately enough to be listed again."""

    since: datetime
    read: datetime
    watch: SessionWatch
    seen: dict[str, datetime] = field(default_factory=dict)

    def after(self, listed: Sequence[GradedSession]) -> "_Followed":
        """Sessions that began before the release were of one version whatever the toss, and say nothing."""
        fresh = [one for one in listed if one.opened_at >= self.since and one.trajectory_id not in self.seen]
        read = max([self.read, *(one.graded_at for one in fresh)])
        seen = self.seen | {one.trajectory_id: one.graded_at for one in fresh}
        seen = {name: graded_at for name, graded_at in seen.items() if graded_at >= read - _LATE}
        return replace(self, read=read, watch=self.watch.after(fresh), seen=seen)


class WatchSessions:
    """Reads the graded sessions of releases, and ends what they show to be worse."""

    def __init__(
        self,
        releases: CanaryReleases,
        models: SqlModelStore,
        sessions: GradedSessions,
        policy: SessionPolicy,
        *,
        now: Clock,
    ) -> None:
        self._releases = releases
        self._models = models
        self._sessions = sessions
        self._policy = policy
        self._now = now
        self._followed: dict[str, _Followed] = {}
        self._offered: dict[str, int] = {}  # model -> revision of the head that was looked at

    async def look(self) -> None:
        """One look at all models. Raises Unavailable."""
        models = await self._models.models()
        followed = {}
        for model in models:
            release = model.canary_release
            if release is not None and release.share > 0:
                followed[model.model] = await self._read(model, release)
            elif self._policy.share and self._offered.get(model.model) != model.head_revision:
                await self._begin(model)
        self._followed = followed
        for model in models:
            if model.model in followed and model.canary_release is not None:
                await self._judge(model, model.canary_release, followed[model.model].watch)

    async def _read(self, model: Model, release: CanaryRelease) -> _Followed:
        since = began(await self._releases.changes(model.model)) or release.changed_at
        newer, older = sorted((model.head_version, release.version), reverse=True)
        known = self._followed.get(model.model)
        if known is None or (known.since, known.watch.newer, known.watch.older) != (since, newer, older):
            known = _Followed(since, since, SessionWatch(newer, older))
        listed = await self._sessions.since(model.model, known.read - _LATE)
        found = known.after(listed)
        telemetry.SESSION_PAIRS.labels(model.model).set(found.watch.watch.pairs)
        return found

    async def _judge(self, model: Model, release: CanaryRelease, found: SessionWatch) -> None:
        if found.watch.is_lost:
            await self._lost(model, release, found)
        elif found.watch.pairs >= self._policy.pairs and release.actor == _OURS:
            await self._end(
                release, f"{found.watch.pairs} pairs of sessions do not show v{found.newer} to be worse"
            )

    async def _lost(self, model: Model, release: CanaryRelease, found: SessionWatch) -> None:
        if release.version == found.newer:
            await self._end(release, _evidence(found))
            return
        move = await self._models.last_head_move(model.model)
        if move.is_forward and move.from_checkpoint_id == release.checkpoint_id:
            predecessor = await self._models.checkpoint(move.from_checkpoint_id)
            reason = f"rolled back: {_evidence(found)}"
            await roll_back(self._models, model, predecessor, reason, at=self._now())

    async def _end(self, release: CanaryRelease, reason: str) -> None:
        try:
            await self._releases.end(
                release.model, actor=GATE_ACTOR, reason=reason, caller=_CALLER, revision=release.revision
            )
        except NoCanaryRelease:  # it ended, or an operator changed it; the next look judges what there is
            return
        log.warning("canary_release_ended", extra={"model": release.model, "reason": reason})

    async def _begin(self, model: Model) -> None:
        """Have the predecessor of a head that moved forward answer its share, once for each such head."""
        move = await self._models.last_head_move(model.model)
        changes = await self._releases.changes(model.model)
        is_new = not any(change.changed_at > move.moved_at and change.is_under_way for change in changes)
        if move.is_forward and move.from_checkpoint_id and is_new and model.canary_release is None:
            reason = f"its sessions beside those of head, {move.to_checkpoint_id}, show whether head is worse"
            share = self._policy.share
            order = ReleaseOrder(
                model.model, move.from_checkpoint_id, share, 0.0, GATE_ACTOR, reason, _CALLER
            )
            try:
                await self._releases.set_release(order, head_revision=model.head_revision, changes=False)
            except RegistryError as error:  # no room, head moved, another began: the next look tries again
                why = {"model": model.model, "why": str(error)}
                log.info("sessions_not_compared", extra=why)
                return
        self._offered[model.model] = model.head_revision


def _evidence(found: SessionWatch) -> str:
    watch: Watch = found.watch
    bet = watch.bets[watch.cause]
    cause = "success" if FAMILY in watch.cause else watch.cause
    return (
        f"over {watch.pairs} pairs of graded sessions v{found.newer} did worse than v{found.older} beside it "
        f"({cause}: worse in {bet.worse}, better in {bet.better}); an equal version loses its place with at "
        f"most {ALPHA:.1%}"
    )
