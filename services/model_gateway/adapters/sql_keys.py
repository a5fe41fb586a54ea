"""API keys in SQL, with a short memory: a key that was created or revoked elsewhere counts within seconds.

While the database is unavailable, keys that were read before stay valid as they were.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import Final, TypeVar

from sqlalchemy import Connection, RowMapping, insert, select, update

from model_gateway.adapters import tables
from model_gateway.domain.errors import KeysUnavailable
from model_gateway.domain.keys import ApiKey, format_key, hash_secret
from model_gateway.domain.limits import NO_LIMITS, KeyLimits
from sql_store import Database
from upcycle.errors import Unavailable

_REMEMBERED_S: Final = 2.0
_MAX_REMEMBERED: Final = 4096
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_CHARS: Final = 12
_SECRET_BYTES: Final = 32
Remembered = TypeVar("Remembered")


class SqlKeyStore:
    """API keys by id, and the ways to make and end keys."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._remembered: OrderedDict[str, tuple[float, ApiKey]] = OrderedDict()
        # Ids that no key has are remembered apart, so that a stranger who sends many pushes no key out.
        self._unknown: OrderedDict[str, float] = OrderedDict()

    async def find(self, key_id: str) -> ApiKey | None:
        """From memory where possible. Raises KeysUnavailable."""
        now, remembered = time.monotonic(), self._remembered.get(key_id)
        if remembered is not None and now - remembered[0] < _REMEMBERED_S:
            return remembered[1]
        if now - self._unknown.get(key_id, -_REMEMBERED_S) < _REMEMBERED_S:
            return None
        try:
            found = await self._db.run(lambda connection: _find(connection, key_id))
        except Unavailable as error:
            if remembered is not None:
                return remembered[1]
            raise KeysUnavailable(f"keys cannot be read now: {error}") from error
        if found is None:
            self._remembered.pop(key_id, None)
            _remember(self._unknown, key_id, time.monotonic())
        else:
            _remember(self._remembered, key_id, (time.monotonic(), found))
        return found

    async def create(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        models: Iterable[str],
        now: datetime,
        may_capture: bool = False,
        limits: KeyLimits = NO_LIMITS,
    ) -> tuple[ApiKey, str]:
        """A fresh key and its text, which is shown once and kept nowhere."""
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARS))
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        key = ApiKey(
            key_id,
            hash_secret(secret),
            name,
            frozenset(scopes),
            frozenset(models),
            now,
            may_capture=may_capture,
            limits=limits,
        )
        await self.put(key)
        return key, format_key(key_id, secret)

    async def put(self, key: ApiKey) -> None:
        """Inserts or replaces."""

        def work(connection: Connection) -> None:
            values = {
                "secret_sha256": key.secret_sha256,
                "name": key.name,
                "scopes": sorted(key.scopes),
                "models": sorted(key.models),
                "created_at": key.created_at,
                "revoked_at": key.revoked_at,
                "may_capture": key.may_capture,
                "limits": key.limits.to_json(),
            }
            mine = tables.api_key.c.key_id == key.key_id
            if connection.execute(update(tables.api_key).where(mine).values(**values)).rowcount == 0:
                connection.execute(insert(tables.api_key).values(key_id=key.key_id, **values))

        await self._db.run(work)
        self._remembered.pop(key.key_id, None)
        self._unknown.pop(key.key_id, None)

    async def set_capture(self, key_id: str, may_capture: bool) -> bool:
        """Its holder agreed to capture, or no longer does. False: no such key."""
        mine = tables.api_key.c.key_id == key_id
        change = update(tables.api_key).where(mine).values(may_capture=may_capture)
        changed = await self._db.run(lambda connection: connection.execute(change).rowcount == 1)
        self._remembered.pop(key_id, None)
        return changed

    async def set_limits(self, key_id: str, limits: KeyLimits) -> bool:
        """What it may use, in place of what was set before. False: no such key."""
        mine = tables.api_key.c.key_id == key_id
        change = update(tables.api_key).where(mine).values(limits=limits.to_json())
        changed = await self._db.run(lambda connection: connection.execute(change).rowcount == 1)
        self._remembered.pop(key_id, None)
        return changed

    async def revoke(self, key_id: str, at: datetime) -> bool:
        """False: no such key, or revoked before."""
        change = (
            update(tables.api_key)
            .where(tables.api_key.c.key_id == key_id, tables.api_key.c.revoked_at.is_(None))
            .values(revoked_at=at)
        )
        revoked = await self._db.run(lambda connection: connection.execute(change).rowcount == 1)
        self._remembered.pop(key_id, None)
        return revoked

    async def all(self) -> list[ApiKey]:
        """Every key, oldest first."""

        def work(connection: Connection) -> list[ApiKey]:
            rows = connection.execute(select(tables.api_key).order_by(tables.api_key.c.created_at))
            return [_key(row) for row in rows.mappings()]

        return await self._db.run(work)


def _remember(memory: OrderedDict[str, Remembered], key_id: str, what: Remembered) -> None:
    memory[key_id] = what
    memory.move_to_end(key_id)
    while len(memory) > _MAX_REMEMBERED:
        memory.popitem(last=False)


def _find(connection: Connection, key_id: str) -> ApiKey | None:
    query = select(tables.api_key).where(tables.api_key.c.key_id == key_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _key(row)


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(
        key_id=row["key_id"],
        secret_sha256=row["secret_sha256"],
        name=row["name"],
        scopes=frozenset(row["scopes"]),
        models=frozenset(row["models"]),
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
        may_capture=row["may_capture"],
        limits=KeyLimits.from_json(row["limits"]),
    )
