"""Models, checkpoints, heads and leases in SQL. Every method is one transaction."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from checkpoint_registry import telemetry, wire
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.canary_rows import releases_under_way
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.adapters.rows import (
    checkpoint_of,
    checkpoint_values,
    job_values,
    lease_of,
    model_of,
    move_of,
)
from checkpoint_registry.adapters.sql_gate import newest_gates
from checkpoint_registry.adapters.sql_heads import first_move, move_head, read_checkpoint
from checkpoint_registry.adapters.sql_versions import latest_versions, record_version
from checkpoint_registry.domain.errors import ModelExists, UnknownCheckpoint, UnknownModel
from checkpoint_registry.domain.jobs import GATE_ACTOR, GateJob, JobPhase
from checkpoint_registry.domain.models import Checkpoint, EngineLease, HeadMove, Model
from identities.entities import interactive_run_id
from sql_store import Database, owned

# Of a row of `model`. Each of these is the end of an index, however many rows the model has.
_NEWEST_CHECKPOINT = (
    select(func.max(tables.checkpoint.c.version))
    .where(owned(tables.checkpoint, model=tables.model.c.model))
    .correlate(tables.model)
    .scalar_subquery()
)
_NEWEST_SET = (
    select(func.max(tables.head_move.c.revision))
    .where(owned(tables.head_move, model=tables.model.c.model), tables.head_move.c.actor != GATE_ACTOR)
    .correlate(tables.model)
    .scalar_subquery()
)
_IS_LAST_MOVE = owned(tables.head_move, model=tables.model.c.model, revision=tables.model.c.head_revision)


class SqlModelStore:
    """Models, checkpoints, heads; an event leaves with the transaction that makes it true."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def create_model(self, base: Checkpoint, *, forked_from: str) -> bool:
        """Add a model with its version 0 as head, revision 1. False: the same digest is there already.

        Raises ModelExists when the slug holds other weights.
        """

        def work(connection: Connection) -> bool:
            row = {
                "model": base.model,
                "forked_from_checkpoint_id": forked_from,
                "head_checkpoint_id": base.checkpoint_id,
                "head_version": base.version,
                "head_revision": 1,
                "created_at": base.created_at,
            }
            if insert_once(connection, tables.model, row):
                connection.execute(insert(tables.checkpoint).values(**checkpoint_values(base)))
                record_version(connection, base.published)
                first_move(connection, base, base.created_at)
                return True
            (existing,) = _versions(connection, base.model, 0)
            if existing.digest == base.digest:
                return False
            raise ModelExists(
                f"model {base.model!r} exists with weights {existing.digest[:12]}, "
                f"not {base.digest[:12]}; choose another slug"
            )

        return await self._db.run(work)

    async def model(self, model: str) -> Model:
        """Raises UnknownModel."""
        found = await self._db.run(lambda connection: _models(connection, model))
        if not found:
            slugs = select(tables.model.c.model).where(owned(tables.model))
            known = await self._db.run(lambda connection: connection.execute(slugs).scalars().all())
            raise UnknownModel(model, known)
        return found[0]

    async def models(self) -> list[Model]:
        """All, by slug."""
        return await self._db.run(lambda connection: _models(connection, None))

    async def names(self) -> list[str]:
        """Slugs of all models, sorted; reads nothing of their trees."""
        query = select(tables.model.c.model).where(owned(tables.model)).order_by(tables.model.c.model)
        return await self._db.run(lambda connection: list(connection.execute(query).scalars()))

    async def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Raises UnknownCheckpoint."""
        return await self._db.run(lambda connection: read_checkpoint(connection, checkpoint_id))

    async def version(self, model: str, version: int) -> Checkpoint:
        """The checkpoint of a version. Raises UnknownModel, UnknownCheckpoint."""

        def work(connection: Connection) -> Checkpoint:
            _require_model(connection, model)
            found = _versions(connection, model, version)
            if not found:
                raise UnknownCheckpoint(f"model {model!r} has no checkpoint of version {version}")
            return found[0]

        return await self._db.run(work)

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        """Oldest first. Raises UnknownModel."""

        def work(connection: Connection) -> list[Checkpoint]:
            _require_model(connection, model)
            return _versions(connection, model, None)

        return await self._db.run(work)

    async def record_candidate(self, checkpoint: Checkpoint, job: GateJob) -> bool:
        """False: recorded before. Raises UnknownModel, VersionConflict."""

        def work(connection: Connection) -> bool:
            _require_model(connection, checkpoint.model)
            record_version(connection, checkpoint.published)
            if insert_once(connection, tables.checkpoint, checkpoint_values(checkpoint)):
                connection.execute(insert(tables.gate_job).values(**job_values(job), active_for_model=None))
                return True
            return False

        return await self._db.run(work)

    async def unread_gate(self, model: str) -> int | None:
        """The version of a checkpoint whose run was not asked yet whether it has a gate; None: there is none.
        Steps of interactive training ask for none."""
        jobs = tables.gate_job
        unread = owned(jobs, model=model, phase=JobPhase.NEW.value)
        query = select(func.min(jobs.c.version)).where(unread, jobs.c.run_id != interactive_run_id(model))
        return await self._db.run(lambda connection: connection.execute(query).scalar())

    async def move_head(
        self, target: Checkpoint, *, expected_revision: int | None, actor: str, reason: str, at: datetime
    ) -> HeadMove:
        """Compare-and-set with audit and event. Raises HeadMoved. A move to head itself is no move."""
        move = HeadMove(target.model, 0, "", target.checkpoint_id, actor, reason, at)
        done = await self._db.run(
            lambda connection: move_head(connection, target, revision=expected_revision, move=move)
        )
        if done.moved_at == at:
            telemetry.head_moved(done, target.version)
        return done

    async def head_moves(self, model: str) -> list[HeadMove]:
        """Oldest first. Raises UnknownModel."""

        def work(connection: Connection) -> list[HeadMove]:
            _require_model(connection, model)
            query = (
                select(tables.head_move)
                .where(owned(tables.head_move, model=model))
                .order_by(tables.head_move.c.revision)
            )
            return [move_of(row) for row in connection.execute(query).mappings()]

        return await self._db.run(work)

    async def last_head_move(self, model: str) -> HeadMove:
        """The one that made head what it is; reads no other. Raises UnknownModel."""

        def work(connection: Connection) -> HeadMove:
            _require_model(connection, model)
            query = select(tables.head_move).where(owned(tables.head_move, model=model))
            last = query.order_by(tables.head_move.c.revision.desc()).limit(1)
            return move_of(connection.execute(last).mappings().one())

        return await self._db.run(work)


class SqlLeaseStore:
    """Engine leases."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def renew(self, lease: EngineLease) -> None:
        """Insert or replace. Raises UnknownModel."""

        def work(connection: Connection) -> None:
            _require_model(connection, lease.model)
            values = {
                "model": lease.model,
                "channel": lease.channel,
                "body": lease.body,
                "expires_at": lease.expires_at,
            }
            mine = tables.engine_lease.c.engine_id == lease.engine_id
            if not insert_once(connection, tables.engine_lease, {"engine_id": lease.engine_id, **values}):
                connection.execute(update(tables.engine_lease).where(mine).values(**values))

        await self._db.run(work)

    async def live(self, model: str, channel: int, now: datetime) -> list[EngineLease]:
        """Leases that have not lapsed; empty model, channel 0: any."""

        def work(connection: Connection) -> list[EngineLease]:
            query = select(tables.engine_lease).where(tables.engine_lease.c.expires_at > now)
            if model:
                query = query.where(owned(tables.engine_lease, model=model))
            if channel:
                query = query.where(tables.engine_lease.c.channel == channel)
            rows = connection.execute(query.order_by(tables.engine_lease.c.engine_id)).mappings()
            return [lease_of(row) for row in rows]

        return await self._db.run(work)

    async def held_versions(self, now: datetime) -> set[tuple[str, int]]:
        """(model, version) that engines whose lease has not lapsed at `now` serve or hold beside it."""
        leases = [wire.lease_to_wire(lease) for lease in await self.live("", 0, now)]
        own = {(one.model, version) for one in leases for version in (one.version, *one.held_versions)}
        return own | {(held.model, held.version) for one in leases for held in one.held_policies}

    async def forget_lapsed(self, before: datetime) -> int:
        """Deletes leases that lapsed before `before`; the number of them."""
        lapsed = delete(tables.engine_lease).where(tables.engine_lease.c.expires_at < before)
        return await self._db.run(lambda connection: connection.execute(lapsed).rowcount)


def _require_model(connection: Connection, model: str) -> None:
    known = select(tables.model.c.model).where(owned(tables.model, model=model))
    if connection.execute(known).first() is None:
        raise UnknownModel(model)


def _models(connection: Connection, model: str | None) -> list[Model]:
    one = {} if model is None else {"model": model}
    query = (
        select(
            tables.model,
            _NEWEST_CHECKPOINT.label("newest_version"),
            tables.head_move.c.moved_at.label("promoted_at"),
            _NEWEST_SET.label("head_set_revision"),
        )
        .join(tables.head_move, _IS_LAST_MOVE)
        .where(owned(tables.model, **one))
        .order_by(tables.model.c.model)
    )
    rows: Sequence[RowMapping] = connection.execute(query).mappings().all()
    latest, gates = latest_versions(connection, model), newest_gates(connection, model)
    releases = releases_under_way(connection, model)
    named = ((row, row["model"]) for row in rows)
    return [model_of(row, latest[name], gates.get(name), releases.get(name)) for row, name in named]


def _versions(connection: Connection, model: str, version: int | None) -> list[Checkpoint]:
    query = (
        select(tables.checkpoint, tables.model.c.head_checkpoint_id)
        .join(tables.model, owned(tables.model, model=model))
        .where(owned(tables.checkpoint, model=model))
    )
    if version is not None:
        query = query.where(tables.checkpoint.c.version == version)
    rows = connection.execute(query.order_by(tables.checkpoint.c.version)).mappings()
    return [checkpoint_of(row) for row in rows]
