"""Moves of head inside one transaction: compare-and-set, audit line, event."""

from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from checkpoint_registry import wire
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.canary_rows import end_release
from checkpoint_registry.adapters.rows import checkpoint_of, move_of
from checkpoint_registry.domain.errors import HeadMoved, UnknownCheckpoint, UnknownModel
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, HeadMove
from grpc_edge.audit import audited
from identities import events
from sql_store import enqueue, owned


def read_checkpoint(connection: Connection, checkpoint_id: str) -> Checkpoint:
    """Raises UnknownCheckpoint."""
    joined = tables.checkpoint.join(tables.model, owned(tables.model, model=tables.checkpoint.c.model))
    query = (
        select(tables.checkpoint, tables.model.c.head_checkpoint_id)
        .select_from(joined)
        .where(owned(tables.checkpoint, checkpoint_id=checkpoint_id))
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        raise UnknownCheckpoint(
            f"checkpoint {checkpoint_id!r} is not in the registry; "
            "`upcycle models checkpoints` lists a model's"
        )
    return checkpoint_of(row)


def move_head(
    connection: Connection, target: Checkpoint, *, revision: int | None, move: HeadMove
) -> HeadMove:
    """Sets head to `target` if it is at `revision` (None: wherever it is). Raises HeadMoved, UnknownModel.

    `move` brings actor, reason and time; the rest is filled in here. Head moved to itself is no move: the
    audit's last line is returned. A move ends the model's canary release, which was beside the head before.
    """
    head = _head(connection, target.model, lock_revision(connection, target.model, revision))
    if head.to_checkpoint_id == target.checkpoint_id:
        return head
    done = replace(
        move,
        model=target.model,
        revision=head.revision + 1,
        from_checkpoint_id=head.to_checkpoint_id,
        to_checkpoint_id=target.checkpoint_id,
    )
    _set_head(connection, target, done)
    connection.execute(insert(tables.head_move).values(**asdict(done)))
    _note(connection, target, done)
    _mark(connection, target, done.reason)
    _announce(connection, target, done)
    why = f"head moved to {target.checkpoint_id}: {done.reason}"
    end_release(connection, target.model, actor=done.actor, reason=why, at=done.moved_at)
    return done


def first_move(connection: Connection, base: Checkpoint, at: datetime) -> None:
    """The audit's first line: the model was added with version 0 as head. No event: no engine serves it."""
    move = HeadMove(base.model, 1, "", base.checkpoint_id, "import", "the model was added", at)
    connection.execute(insert(tables.head_move).values(**asdict(move)))
    came_from = f" from {base.parent_checkpoint_id}" if base.parent_checkpoint_id else ""
    audited(connection, f"model {base.model}", f"added{came_from}", digest=base.digest, by=move.actor)


def lock_revision(connection: Connection, model: str, expected: int | None) -> int:
    """Head's revision; the model's row stays locked until the transaction ends. Raises HeadMoved if it is not
    what was expected (None: any), UnknownModel.
    """
    lock = select(tables.model.c.head_revision).where(owned(tables.model, model=model)).with_for_update()
    revision = connection.execute(lock).scalar()
    if revision is None:
        raise UnknownModel(model)
    if expected is not None and expected != revision:
        raise HeadMoved(model, expected, revision)
    return int(revision)


def _head(connection: Connection, model: str, revision: int) -> HeadMove:
    """The last line of the audit, which is head."""
    # A statement of its own: Postgres would not see the line that a writer we waited for has added.
    query = select(tables.head_move).where(owned(tables.head_move, model=model, revision=revision))
    return move_of(connection.execute(query).mappings().one())


def _set_head(connection: Connection, target: Checkpoint, move: HeadMove) -> None:
    """The compare-and-set proper, in case a database does not lock rows."""
    before = move.revision - 1
    changed = connection.execute(
        update(tables.model)
        .where(owned(tables.model, model=move.model, head_revision=before))
        .values(
            head_checkpoint_id=target.checkpoint_id, head_version=target.version, head_revision=move.revision
        )
    )
    if changed.rowcount != 1:
        raise HeadMoved(move.model, before, move.revision)


def _note(connection: Connection, target: Checkpoint, move: HeadMove) -> None:
    """In the audit log of the service, whose head moves are kept by model as well."""
    moved = f"head moved from {move.from_checkpoint_id} to {move.to_checkpoint_id}: {move.reason}"
    audited(connection, f"model {move.model}", moved, digest=target.digest, by=move.actor)


def _announce(connection: Connection, target: Checkpoint, move: HeadMove) -> None:
    event_id = events.head_moved("promoted" if move.is_forward else "rolled_back", move.model, move.revision)
    enqueue(connection, wire.head_moved(target, move), model=move.model, event_id=event_id)


def _mark(connection: Connection, target: Checkpoint, reason: str) -> None:
    """A checkpoint that is head was promoted; version 0 stays the base that it is."""
    state = target.state if target.state is CheckpointState.BASE else CheckpointState.PROMOTED
    connection.execute(
        update(tables.checkpoint)
        .where(owned(tables.checkpoint, checkpoint_id=target.checkpoint_id))
        .values(state=state.value, reason=reason)
    )
