"""Keys in SQL. Every method is one transaction."""

import hashlib
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, RowMapping, insert, or_, select, update

from checkpoint_registry.adapters import tables
from checkpoint_registry.domain.errors import TooManyKeys, UnknownKey
from checkpoint_registry.domain.keys import MAX_VALID, REVOKED_SHOWN, ROLES, ApiKey
from grpc_edge.audit import audited
from grpc_edge.issued_keys import IssuedKey, ValidKeys
from sql_store import Database, owned, take_turn
from upcycle.api.common.v1.access_pb2 import Role

_KEY: Final = tables.api_key.c
_USED_TO: Final = timedelta(minutes=10)
"""How exact the time of the last use is: a key that is used all the time is written so often."""


class SqlKeyStore:
    """Keys by id. No row is ever deleted."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, key: ApiKey) -> None:
        """A fresh one. Raises TooManyKeys."""

        def work(connection: Connection) -> None:
            take_turn(connection, "api keys")
            if len(_valid(connection, key.created_at)) >= MAX_VALID:
                raise TooManyKeys(MAX_VALID)
            values = {name: getattr(key, name) for name in ApiKey.__slots__}
            connection.execute(
                insert(tables.api_key).values(
                    **{**values, "role": Role.Name(key.role), "scopes": list(key.scopes)}
                )
            )
            _note(connection, key, f"made for {key.name}: {ROLES[key.role]}, {', '.join(key.scopes)}")

        await self._db.run(work)

    async def all(self) -> list[ApiKey]:
        """Oldest first, with those that ended."""
        return await self._db.run(_all)

    async def revoke(self, key_id: str, *, at: datetime, by: str) -> ApiKey:
        """The key as it is then; a second call changes nothing. Raises UnknownKey."""

        def work(connection: Connection) -> ApiKey:
            mine = owned(tables.api_key, key_id=key_id)
            change = update(tables.api_key).where(mine, _KEY.revoked_at.is_(None))
            revoked = connection.execute(change.values(revoked_at=at, revoked_by=by)).rowcount == 1
            row = connection.execute(select(tables.api_key).where(mine)).mappings().first()
            if row is None:
                raise UnknownKey(key_id)
            if revoked:
                _note(connection, _key(row), f"revoked, of {row['name']}")
            return _key(row)

        return await self._db.run(work)

    async def valid_keys(self, known: str, used: Collection[str], now: datetime) -> ValidKeys | None:
        """What servers keep; None where its digest is `known`. Notes the time of keys that were used."""

        def work(connection: Connection) -> ValidKeys | None:
            if used:
                _note_use(connection, used, now)
            valid, revoked = _valid(connection, now), _revoked(connection, now)
            digest = _digest(valid, revoked)
            if digest == known:
                return None
            return ValidKeys(digest, {key.sha256: _issued(key) for key in valid}, frozenset(revoked))

        return await self._db.run(work)


def _note(connection: Connection, key: ApiKey, outcome: str) -> None:
    audited(connection, f"key {key.key_id}", outcome, digest=key.sha256, by=key.created_by)


def _all(connection: Connection) -> list[ApiKey]:
    query = select(tables.api_key).where(owned(tables.api_key)).order_by(_KEY.created_at, _KEY.key_id)
    return [_key(row) for row in connection.execute(query).mappings()]


def _valid(connection: Connection, now: datetime) -> list[ApiKey]:
    lives = or_(_KEY.expires_at.is_(None), _KEY.expires_at > now)
    query = select(tables.api_key).where(owned(tables.api_key), _KEY.revoked_at.is_(None), lives)
    return [_key(row) for row in connection.execute(query.order_by(_KEY.key_id)).mappings()]


def _revoked(connection: Connection, now: datetime) -> list[str]:
    """Hashes."""
    lately = _KEY.revoked_at > now - REVOKED_SHOWN
    query = select(_KEY.sha256).where(owned(tables.api_key), lately).order_by(_KEY.sha256)
    return list(connection.execute(query).scalars())


def _note_use(connection: Connection, used: Collection[str], now: datetime) -> None:
    unnoted = or_(_KEY.last_used_at.is_(None), _KEY.last_used_at < now - _USED_TO)
    change = update(tables.api_key).where(owned(tables.api_key), _KEY.key_id.in_(sorted(used)), unnoted)
    connection.execute(change.values(last_used_at=now))


def _digest(valid: Collection[ApiKey], revoked: Collection[str]) -> str:
    """Of all that servers are told; a key never changes but by its end."""
    return hashlib.sha256("\n".join([*(key.sha256 for key in valid), "", *revoked]).encode()).hexdigest()


def _issued(key: ApiKey) -> IssuedKey:
    return IssuedKey(key.key_id, key.name, key.role, frozenset(key.scopes), key.created_at, key.expires_at)


def _key(row: RowMapping) -> ApiKey:
    values = {name: row[name] for name in ApiKey.__slots__}
    return ApiKey(**{**values, "role": Role.Value(row["role"]), "scopes": tuple(row["scopes"])})
