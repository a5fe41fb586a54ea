"""Rows of canary releases, inside one transaction: what is under way, and a change with its audit and fact.

The caller has the model's row locked (`sql_heads.lock_revision`), so that changes of one model, and moves of
its head, come one after another.
"""

from dataclasses import asdict, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select

from checkpoint_registry import wire
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.rows import release_of
from checkpoint_registry.domain.models import CanaryRelease
from grpc_edge.audit import audited
from identities import events
from sql_store import enqueue, owned

HOLDER: Final = "canary_release"
"""For which the version of a release is held."""
_ROW: Final = tables.canary_release.c


def releases_under_way(connection: Connection, model: str | None) -> dict[str, CanaryRelease]:
    """By model (None: of all), without those that ended."""
    one, name = {} if model is None else {"model": model}, tables.model.c.model
    newest = (  # the end of an index, however often it changed
        select(func.max(_ROW.revision))
        .where(owned(tables.canary_release, model=name))
        .correlate(tables.model)
        .scalar_subquery()
    )
    is_newest = owned(tables.canary_release, model=name, revision=newest)
    query = select(tables.canary_release).join_from(tables.model, tables.canary_release, is_newest)
    rows = connection.execute(query.where(owned(tables.model, **one))).mappings()
    found = (release_of(row) for row in rows)
    return {release.model: release for release in found if release.is_under_way}


def change_release(connection: Connection, release: CanaryRelease) -> CanaryRelease:
    """The change with its revision, stored with its fact. The hold of a version that is not the release's any
    more ends."""
    newest = select(func.max(_ROW.revision)).where(owned(tables.canary_release, model=release.model))
    done = replace(release, revision=(connection.execute(newest).scalar() or 0) + 1)
    connection.execute(insert(tables.canary_release).values(**asdict(done)))
    mine, hold = owned(tables.policy_hold, model=done.model, holder=HOLDER), tables.policy_hold.c
    unneeded = mine & (hold.version != done.version) if done.is_under_way else mine
    connection.execute(delete(tables.policy_hold).where(unneeded))
    said = f"{done.checkpoint_id}, share {done.share:g}, shadow {done.shadow_share:g}"
    outcome = f"{said if done.is_under_way else 'ended'}: {done.reason}"
    audited(connection, f"canary release of {done.model}", outcome, by=done.actor)
    event_id = events.canary_release_changed(done.model, done.revision)
    enqueue(connection, wire.release_changed(done), model=done.model, event_id=event_id)
    return done


def end_release(
    connection: Connection, model: str, *, actor: str, reason: str, at: datetime
) -> CanaryRelease | None:
    """None: none is under way."""
    release = releases_under_way(connection, model).get(model)
    if release is None:
        return None
    ended = replace(release, share=0.0, shadow_share=0.0, actor=actor, reason=reason, changed_at=at)
    return change_release(connection, ended)
