"""Holds of policies in SQL. Every method is one transaction."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, select, update

from checkpoint_registry import wire
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.adapters.rows import lease_of
from checkpoint_registry.adapters.sql_versions import lock_version
from checkpoint_registry.domain.errors import UnknownModel
from checkpoint_registry.domain.holds import PolicyHold, base_of, choose_engine
from checkpoint_registry.domain.models import EngineLease
from grpc_edge.access import current_caller
from grpc_edge.audit import audited
from identities.objects import PolicyFolder
from sql_store import Database, owned
from upcycle.api.common.v1.access_pb2 import Role

_HOLD = tables.policy_hold.c


class SqlHoldStore:
    """Holds by model, version and holder."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def hold(
        self, policy: PolicyFolder, holder: str, *, now: datetime, until: datetime
    ) -> tuple[PolicyHold, EngineLease]:
        """Grant or extend a hold, on an engine that lives. Raises UnknownModel, UnknownVersion,
        VersionRemoved, NoEngine, OtherBase, NoRoom."""
        return await self._db.run(
            lambda connection: grant_hold(connection, policy, holder, now=now, until=until)
        )

    async def release(self, policy: PolicyFolder, holder: str) -> bool:
        """False: there was no such hold."""
        mine = owned(tables.policy_hold, model=policy.model, version=policy.version, holder=holder)
        change = delete(tables.policy_hold).where(mine)

        def work(connection: Connection) -> bool:
            released = connection.execute(change).rowcount > 0
            if released:
                _note(connection, policy, f"released for {holder}")
            return released

        return await self._db.run(work)

    async def live(self, now: datetime, *, model: str = "", engine_id: str = "") -> list[PolicyHold]:
        """Holds that have not expired; of a model, of an engine, of all."""
        chosen = {name: value for name, value in (("model", model), ("engine_id", engine_id)) if value}
        return await self._db.run(lambda connection: live_holds(connection, now, **chosen))

    async def forget_expired(self, before: datetime) -> int:
        """Deletes holds that expired before `before`; the number of them."""
        expired = delete(tables.policy_hold).where(_HOLD.expires_at < before)
        return await self._db.run(lambda connection: connection.execute(expired).rowcount)


def grant_hold(
    connection: Connection, policy: PolicyFolder, holder: str, *, now: datetime, until: datetime
) -> tuple[PolicyHold, EngineLease]:
    """Inside a transaction; the same as `SqlHoldStore.hold`."""
    origins = _origins(connection)
    if policy.model not in origins:
        raise UnknownModel(policy.model, sorted(origins))
    lock_version(connection, *policy)  # retention removes no version in between
    leases = _locked_leases(connection, now)
    rooms = [wire.room_of(lease, base_of(lease.model, origins)) for lease in leases.values()]
    base, holds = base_of(policy.model, origins), live_holds(connection, now)
    chosen = choose_engine(policy, base, rooms, holds)
    granted = PolicyHold(*policy, holder, chosen, until)
    connection.execute(delete(tables.policy_hold).where(_HOLD.expires_at < now))
    if _write(connection, granted):
        _note(connection, policy, f"held by {chosen} for {holder} until {until:%Y-%m-%d %H:%M} UTC")
    return granted, leases[chosen]


def live_holds(connection: Connection, now: datetime, **of: str) -> list[PolicyHold]:
    """Inside a transaction. of: columns and their values."""
    query = (
        select(tables.policy_hold)
        .where(owned(tables.policy_hold, **of), _HOLD.expires_at > now)
        .order_by(_HOLD.model, _HOLD.version, _HOLD.holder)
    )
    rows = connection.execute(query).mappings()
    return [PolicyHold(**{name: row[name] for name in PolicyHold.__slots__}) for row in rows]


def _origins(connection: Connection) -> dict[str, str]:
    """By model, the checkpoint that it was forked from."""
    query = select(tables.model.c.model, tables.model.c.forked_from_checkpoint_id).where(owned(tables.model))
    return {row.model: row.forked_from_checkpoint_id for row in connection.execute(query)}


def _locked_leases(connection: Connection, now: datetime) -> dict[str, EngineLease]:
    """Live leases by engine; until the transaction ends no other one grants holds on these engines."""
    table = tables.engine_lease
    query = select(table).where(owned(table), table.c.expires_at > now).order_by(table.c.engine_id)
    found: Sequence[EngineLease] = [
        lease_of(row) for row in connection.execute(query.with_for_update()).mappings()
    ]
    return {lease.engine_id: lease for lease in found}


def _note(connection: Connection, policy: PolicyFolder, outcome: str) -> None:
    """Of holds that people ask for; those of the gateway and of runs come and go with the traffic."""
    if current_caller().role != Role.ROLE_SERVICE:
        audited(connection, f"version {policy.model}@v{policy.version}", outcome, by="engine")


def _write(connection: Connection, hold: PolicyHold) -> bool:
    """False: it was there, and is extended."""
    key = {"model": hold.model, "version": hold.version, "holder": hold.holder}
    values = {"engine_id": hold.engine_id, "expires_at": hold.expires_at}
    if not insert_once(connection, tables.policy_hold, {**key, **values}):
        change = update(tables.policy_hold).where(owned(tables.policy_hold, **key)).values(**values)
        connection.execute(change)
        return False
    return True
