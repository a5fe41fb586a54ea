"""Canary releases in SQL. Every method is one transaction."""

from datetime import datetime

from sqlalchemy import Connection, select

from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.canary_rows import HOLDER, change_release, end_release, releases_under_way
from checkpoint_registry.adapters.rows import release_of
from checkpoint_registry.adapters.sql_heads import lock_revision, read_checkpoint
from checkpoint_registry.adapters.sql_holds import grant_hold
from checkpoint_registry.domain.errors import (
    AlreadyHead,
    NoCanaryRelease,
    ReleaseUnderWay,
    UnknownCheckpoint,
    UnknownModel,
)
from checkpoint_registry.domain.models import CanaryRelease, EngineLease
from identities.objects import PolicyFolder
from sql_store import Database, owned


class SqlCanaryReleases:
    """Changes of canary releases, with the hold of the version that is released."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def set_release(
        self, wanted: CanaryRelease, *, head_revision: int | None, until: datetime, changes: bool = True
    ) -> tuple[CanaryRelease, EngineLease]:
        """Its version is looked up by its checkpoint, and held until then. changes: one that is under way
        may be changed. Raises UnknownModel, UnknownCheckpoint, HeadMoved, AlreadyHead, ReleaseUnderWay,
        VersionRemoved, NoEngine, OtherBase, NoRoom."""

        def work(connection: Connection) -> tuple[CanaryRelease, EngineLease]:
            lock_revision(connection, wanted.model, head_revision)
            known = releases_under_way(connection, wanted.model).get(wanted.model)
            if known is not None and not changes:
                raise ReleaseUnderWay(wanted.model, known.version)
            target = read_checkpoint(connection, wanted.checkpoint_id)
            if target.model != wanted.model:
                raise UnknownCheckpoint(f"checkpoint {target.checkpoint_id!r} is not one of {wanted.model!r}")
            if target.is_head:
                raise AlreadyHead(target.checkpoint_id, wanted.model)
            done = change_release(connection, wanted.of_version(target.version))
            policy = PolicyFolder(target.model, target.version)
            _, lease = grant_hold(connection, policy, HOLDER, now=wanted.changed_at, until=until)
            return done, lease

        return await self._db.run(work)

    async def end(
        self, model: str, *, actor: str, reason: str, at: datetime, revision: int | None = None
    ) -> CanaryRelease:
        """revision: of the release that is meant; None: whichever is under way. Raises UnknownModel,
        NoCanaryRelease."""

        def work(connection: Connection) -> CanaryRelease:
            lock_revision(connection, model, None)
            if revision is not None:
                release = releases_under_way(connection, model).get(model)
                if release is None or release.revision != revision:
                    raise NoCanaryRelease(model)
            ended = end_release(connection, model, actor=actor, reason=reason, at=at)
            if ended is None:
                raise NoCanaryRelease(model)
            return ended

        return await self._db.run(work)

    async def under_way(self) -> list[CanaryRelease]:
        """Of all models."""
        found = await self._db.run(lambda connection: releases_under_way(connection, None))
        return list(found.values())

    async def keep_held(self, release: CanaryRelease, *, now: datetime, until: datetime) -> None:
        """Extend the hold of a release, on another engine where its own is gone; nothing where the release
        changed meanwhile. Raises VersionRemoved, NoEngine, OtherBase, NoRoom."""

        def work(connection: Connection) -> None:
            lock_revision(connection, release.model, None)
            if releases_under_way(connection, release.model).get(release.model) == release:
                policy = PolicyFolder(release.model, release.version)
                grant_hold(connection, policy, HOLDER, now=now, until=until)

        await self._db.run(work)

    async def changes(self, model: str) -> list[CanaryRelease]:
        """The audit, oldest first. Raises UnknownModel."""

        def work(connection: Connection) -> list[CanaryRelease]:
            known = select(tables.model.c.model).where(owned(tables.model, model=model))
            if connection.execute(known).first() is None:
                raise UnknownModel(model)
            table = tables.canary_release
            query = select(table).where(owned(table, model=model)).order_by(table.c.revision)
            return [release_of(row) for row in connection.execute(query).mappings()]

        return await self._db.run(work)
