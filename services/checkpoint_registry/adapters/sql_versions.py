"""Every version that was published, in SQL: the one place that says which version of a model is latest.

Facts may come late, twice and out of order. A row is inserted once, latest is the highest version that was
not removed, and a removed version keeps its row, so that its fact cannot bring it back.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, RowMapping, Table, func, select, update

from blob_store import BlobRef
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.adapters.rows import version_of
from checkpoint_registry.domain.errors import UnknownModel, UnknownVersion, VersionConflict, VersionRemoved
from checkpoint_registry.domain.models import PublishedVersion
from grpc_edge.audit import audited
from identities.objects import PolicyFolder
from sql_store import Database, owned

_ROW = tables.published_version.c
_ASKED_AT_ONCE: Final = 500
"""Versions that one query names; a database limits its parameters."""


class SqlVersionStore:
    """Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def record(self, published: PublishedVersion) -> bool:
        """Record a version; False: it was recorded before. Raises UnknownModel, VersionConflict."""

        def work(connection: Connection) -> bool:
            known = select(tables.model.c.model).where(owned(tables.model, model=published.model))
            if connection.execute(known).first() is None:
                raise UnknownModel(published.model)
            return record_version(connection, published)

        return await self._db.run(work)

    async def version(self, model: str, version: int) -> PublishedVersion:
        """A version that can be fetched. Raises UnknownVersion, VersionRemoved."""
        row = await self._db.run(lambda connection: _row_of(connection, model, version))
        if row is None:
            raise UnknownVersion(model, version)
        if row["removed_at"] is not None:
            raise VersionRemoved(model, version, row["removed_at"])
        return version_of(row)

    async def unpublished(self, folders: Collection[PolicyFolder]) -> set[PolicyFolder]:
        """Those of these versions that were never recorded; one that was removed is recorded."""
        return await self._db.run(lambda connection: _lacking(connection, tables.published_version, folders))

    async def unsaved(self, folders: Collection[PolicyFolder]) -> set[PolicyFolder]:
        """Those of these versions that are no checkpoints of the tree."""
        return await self._db.run(lambda connection: _lacking(connection, tables.checkpoint, folders))

    async def mark_removed(self, model: str, version: int, at: datetime) -> bool:
        """Offer the version no more, neither as latest nor to a pin, even if its fact is yet to come. Its
        files go after this. False: it is held, and nothing was changed.
        """
        unannounced = PublishedVersion(model, version, "", BlobRef("", "", 0), "", 0, at)
        change = (
            update(tables.published_version)
            .where(owned(tables.published_version, model=model, version=version), _ROW.removed_at.is_(None))
            .values(removed_at=at)
        )

        def work(connection: Connection) -> bool:
            insert_once(connection, tables.published_version, asdict(unannounced))
            _locked_row(connection, model, version)  # a hold is granted before this, or finds it removed
            if _is_held(connection, model, version, at):
                return False
            connection.execute(change)
            audited(connection, f"model {model}", f"version {version} removed", by="retention")
            return True

        return await self._db.run(work)


def lock_version(connection: Connection, model: str, version: int) -> None:
    """Inside a transaction: until it ends the version is not removed. Raises UnknownVersion,
    VersionRemoved."""
    row = _locked_row(connection, model, version)
    if row is None:
        raise UnknownVersion(model, version)
    if row["removed_at"] is not None:
        raise VersionRemoved(model, version, row["removed_at"])


def _locked_row(connection: Connection, model: str, version: int) -> RowMapping | None:
    query = select(tables.published_version).where(
        owned(tables.published_version, model=model, version=version)
    )
    return connection.execute(query.with_for_update()).mappings().first()


def _is_held(connection: Connection, model: str, version: int, at: datetime) -> bool:
    hold = tables.policy_hold
    query = select(hold.c.holder).where(owned(hold, model=model, version=version), hold.c.expires_at > at)
    return connection.execute(query).first() is not None


def record_version(connection: Connection, published: PublishedVersion) -> bool:
    """Inside a transaction: True if the version is new, False if it is known. Raises VersionConflict."""
    if insert_once(connection, tables.published_version, asdict(published)):
        return True
    row = _row_of(connection, published.model, published.version)
    known = "" if row is None else row["digest"]
    if row is not None and known in ("", published.digest):  # "": removed before its fact came
        return False
    raise VersionConflict(published.model, published.version, known, published.digest)


def latest_versions(connection: Connection, model: str | None) -> Mapping[str, PublishedVersion]:
    """The highest version of a model (None: of each) that was published and not removed."""
    one = {} if model is None else {"model": model}
    name = tables.model.c.model
    highest = (  # the end of an index, however many versions the model has
        select(func.max(_ROW.version))
        .where(owned(tables.published_version, model=name), _ROW.removed_at.is_(None))
        .correlate(tables.model)
        .scalar_subquery()
    )
    is_highest = owned(tables.published_version, model=name, version=highest)
    query = select(tables.published_version).join_from(tables.model, tables.published_version, is_highest)
    rows = connection.execute(query.where(owned(tables.model, **one))).mappings()
    return {row["model"]: version_of(row) for row in rows}


def _lacking(connection: Connection, table: Table, folders: Collection[PolicyFolder]) -> set[PolicyFolder]:
    """Versions without a row; reads no row of another version."""
    asked: dict[str, list[int]] = {}
    for model, version in folders:
        asked.setdefault(model, []).append(version)
    lacking = set(folders)
    for model, versions in asked.items():
        for start in range(0, len(versions), _ASKED_AT_ONCE):
            some = table.c.version.in_(versions[start : start + _ASKED_AT_ONCE])
            query = select(table.c.version).where(owned(table, model=model), some)
            lacking.difference_update(PolicyFolder(model, row.version) for row in connection.execute(query))
    return lacking


def _row_of(connection: Connection, model: str, version: int) -> RowMapping | None:
    query = select(tables.published_version).where(
        owned(tables.published_version, model=model, version=version)
    )
    return connection.execute(query).mappings().first()
