"""Secrets of MCP servers in SQL, sealed. Every method is one transaction."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from grpc_edge.audit import audited
from scenario_runner.adapters.sealing import Sealer
from scenario_runner.adapters.tables import SERVER_SECRET
from scenario_runner.domain.secrets import NoSecretsKey, Rotation, SecretValue, StoredSecret, UnknownSecret
from sql_store import Database, owned, take_turn
from sql_store.tenants import current_tenant

_SHOWN: Final = tuple(StoredSecret.__slots__)


class SqlSecrets:
    """By name. sealer: None where this platform has no key to encrypt them with."""

    def __init__(self, database: Database, sealer: Sealer | None) -> None:
        self._db = database
        self._sealer = sealer

    async def put(
        self, secret: StoredSecret, value: str, *, keeps_environments: bool = False
    ) -> StoredSecret:
        """A new one, or another value. keeps_environments: those that may name it already go on to. Raises
        NoSecretsKey."""
        if (sealer := self._sealer) is None:
            raise NoSecretsKey

        def work(connection: Connection) -> StoredSecret:
            take_turn(connection, "server secrets")
            mine = owned(SERVER_SECRET, name=secret.name)
            known = connection.execute(select(SERVER_SECRET.c.environments).where(mine)).first()
            kept = tuple(known[0]) if known and keeps_environments else secret.environments
            done = replace(secret, environments=kept)
            row = _row(done, value, sealer)
            if known:
                connection.execute(update(SERVER_SECRET).where(mine).values(**row))
            else:
                connection.execute(insert(SERVER_SECRET).values(**row))
            outcome = f"{'set to another value' if known else 'set'}{_allowed(done)}"
            audited(connection, f"secret {secret.name}", outcome, by=secret.set_by)
            return done

        return await self._db.run(work)

    async def all(self) -> list[StoredSecret]:
        """By name, without values."""
        query = select(*(SERVER_SECRET.c[name] for name in _SHOWN)).where(owned(SERVER_SECRET))

        def work(connection: Connection) -> list[StoredSecret]:
            rows = connection.execute(query.order_by(SERVER_SECRET.c.name)).mappings()
            return [_stored(row) for row in rows]

        return await self._db.run(work)

    async def remove(self, name: str, *, by: str) -> None:
        """Raises UnknownSecret."""

        def work(connection: Connection) -> None:
            gone = connection.execute(delete(SERVER_SECRET).where(owned(SERVER_SECRET, name=name)))
            if not gone.rowcount:
                raise UnknownSecret(name)
            audited(connection, f"secret {name}", "removed", by=by)

        await self._db.run(work)

    async def rotate(self, *, by: str) -> Rotation:
        """Encrypt all with the key that counts now, in one transaction. Raises NoSecretsKey,
        SecretsKeyRefused."""
        if (sealer := self._sealer) is None:
            raise NoSecretsKey

        def work(connection: Connection) -> Rotation:
            take_turn(connection, "server secrets")
            rows = list(connection.execute(select(SERVER_SECRET).where(owned(SERVER_SECRET))).mappings())
            others = [row for row in rows if row["key_id"] != sealer.key_id]
            for row in others:
                found = _value(row, sealer)
                anew = {one: _row(found.stored, found.value, sealer)[one] for one in ("key_id", "sealed")}
                connection.execute(
                    update(SERVER_SECRET).where(owned(SERVER_SECRET, name=row["name"])).values(**anew)
                )
            audited(connection, "secrets", f"{len(others)} encrypted anew, with key {sealer.key_id}", by=by)
            return Rotation(len(others), len(rows), sealer.key_id)

        return await self._db.run(work)

    async def values(self, names: Collection[str]) -> dict[str, SecretValue]:
        """Those of the names that are set. Raises SecretsKeyRefused, NoSecretsKey."""
        table = SERVER_SECRET.c
        query = select(SERVER_SECRET).where(owned(SERVER_SECRET), table.name.in_(sorted(names)))
        rows = await self._db.run(lambda connection: list(connection.execute(query).mappings()))
        if rows and self._sealer is None:
            raise NoSecretsKey
        return {row["name"]: _value(row, self._sealer) for row in rows if self._sealer is not None}


def _row(secret: StoredSecret, value: str, sealer: Sealer) -> dict[str, Any]:
    tenant, environments = current_tenant(), list(secret.environments)
    sealed = sealer.seal(value, tenant=tenant, name=secret.name, environments=environments)
    stored = {one: getattr(secret, one) for one in _SHOWN} | {"environments": environments}
    return {"tenant": tenant, "key_id": sealer.key_id, "sealed": sealed, **stored}


def _stored(row: RowMapping) -> StoredSecret:
    return StoredSecret(**{one: row[one] for one in _SHOWN} | {"environments": tuple(row["environments"])})


def _value(row: RowMapping, sealer: Sealer) -> SecretValue:
    value = sealer.unseal(
        row["sealed"],
        tenant=row["tenant"],
        name=row["name"],
        environments=row["environments"],
        key_id=row["key_id"],
    )
    return SecretValue(_stored(row), value)


def _allowed(secret: StoredSecret) -> str:
    return f", for {', '.join(secret.environments)}" if secret.environments else ""
