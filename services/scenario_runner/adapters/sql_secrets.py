"""Secrets of MCP servers in SQL, sealed. Every method is one transaction."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from grpc_edge.audit import audited
from scenario_runner.adapters.sealing import Sealer
from scenario_runner.adapters.tables import SERVER_SECRET
from scenario_runner.domain.secrets import NoSecretsKey, StoredSecret, UnknownSecret
from sql_store import Database, owned, take_turn
from sql_store.tenants import current_tenant

_SHOWN: Final = tuple(StoredSecret.__slots__)


class SqlSecrets:
    """By name. sealer: None where this platform has no key to encrypt them with."""

    def __init__(self, database: Database, sealer: Sealer | None) -> None:
        self._db = database
        self._sealer = sealer

    async def put(self, secret: StoredSecret, value: str) -> None:
        """A new one, or another value. Raises NoSecretsKey."""
        if (sealer := self._sealer) is None:
            raise NoSecretsKey

        def work(connection: Connection) -> None:
            take_turn(connection, "server secrets")
            tenant = current_tenant()
            row = {
                "key_id": sealer.key_id,
                "sealed": sealer.seal(value, tenant=tenant, name=secret.name),
                "set_by": secret.set_by,
                "set_at": secret.set_at,
            }
            mine = owned(SERVER_SECRET, name=secret.name)
            if connection.execute(update(SERVER_SECRET).where(mine).values(**row)).rowcount:
                outcome = "set to another value"
            else:
                connection.execute(insert(SERVER_SECRET).values(tenant=tenant, name=secret.name, **row))
                outcome = "set"
            audited(connection, f"secret {secret.name}", outcome, by=secret.set_by)

        await self._db.run(work)

    async def all(self) -> list[StoredSecret]:
        """By name, without values."""
        query = select(*(SERVER_SECRET.c[name] for name in _SHOWN)).where(owned(SERVER_SECRET))

        def work(connection: Connection) -> list[StoredSecret]:
            rows = connection.execute(query.order_by(SERVER_SECRET.c.name)).mappings()
            return [StoredSecret(**row) for row in rows]

        return await self._db.run(work)

    async def remove(self, name: str, *, by: str) -> None:
        """Raises UnknownSecret."""

        def work(connection: Connection) -> None:
            gone = connection.execute(delete(SERVER_SECRET).where(owned(SERVER_SECRET, name=name)))
            if not gone.rowcount:
                raise UnknownSecret(name)
            audited(connection, f"secret {name}", "removed", by=by)

        await self._db.run(work)

    async def values(self, names: Collection[str]) -> dict[str, str]:
        """Those of the names that are set. Raises SecretsKeyRefused, NoSecretsKey."""
        table = SERVER_SECRET.c
        query = select(SERVER_SECRET).where(owned(SERVER_SECRET), table.name.in_(sorted(names)))
        rows = await self._db.run(lambda connection: list(connection.execute(query).mappings()))
        if rows and self._sealer is None:
            raise NoSecretsKey
        return {
            row["name"]: self._sealer.unseal(
                row["sealed"], tenant=row["tenant"], name=row["name"], key_id=row["key_id"]
            )
            for row in rows
            if self._sealer is not None
        }
