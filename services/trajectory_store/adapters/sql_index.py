"""The projection in SQL: rows, counters and feed change in one transaction, whatever the facts."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from episodes.identity import PURPOSE_NUMBERS
from identities import events
from identities.entities import (
    RECORDED_DIGEST_CHARS,
    RECORDED_RUN,
    group_of_episode,
    is_client_run,
    parse_group_id,
)
from sql_store import Database, enqueue, owned
from trajectory_store import telemetry
from trajectory_store.adapters.rows import episode_of, has_label, row_of
from trajectory_store.adapters.tables import (
    ALARMS,
    EPISODES,
    FEED,
    LABELLED,
    LEDGER,
    REMOVED_RUNS,
    UNCHECKED,
    UNSETTLED,
)
from trajectory_store.domain.facts import EpisodeFact, LedgerState
from trajectory_store.domain.ledger import CounterDelta, Episode, Ledger, deltas, fold
from trajectory_store.domain.queries import FeedChange, PageKey, TrajectoryFilter
from trajectory_store.wire import views

T = TypeVar("T")

_FEED_ID: Final = 1
_IDS_PER_QUERY: Final = 500
_LOCKED_POSITION: Final = select(FEED.c.position).where(FEED.c.id == _FEED_ID).with_for_update()
_MOVE: Final = update(FEED).where(FEED.c.id == _FEED_ID).values(position=bindparam("moved_to"))
_BY_ID: Final = select(EPISODES).where(EPISODES.c.episode_id.in_(bindparam("ids", expanding=True)))


class SqlIndex:
    """The projection. Each method is one transaction; all raise Unavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def project(self, facts: Sequence[EpisodeFact]) -> int:
        """Fold facts, in order, into rows and counters. Returns how many rows changed."""
        return await self._db.run(lambda connection: _project(connection, facts)) if facts else 0

    async def find_episode(self, episode_id: str) -> Episode | None:
        """One row."""
        query = select(EPISODES).where(EPISODES.c.episode_id == episode_id)
        found = await self._db.run(lambda connection: _episodes(connection, query))
        return found[0] if found else None

    async def removal_of(self, episode_id: str) -> tuple[int, str] | None:
        """When retention removed the first rows of the run that an episode id names, and why; None: never."""
        query = select(REMOVED_RUNS.c.removed_us, REMOVED_RUNS.c.why).where(
            owned(REMOVED_RUNS, run_id=run_of_episode(episode_id))
        )
        found = await self._db.run(lambda connection: connection.execute(query).first())
        return None if found is None else (int(found.removed_us), str(found.why))

    async def page(self, wanted: TrajectoryFilter, after: PageKey | None, limit: int) -> list[Episode]:
        """Recorded trajectories, newest first, beginning after a key."""
        query = (
            select(EPISODES)
            .where(EPISODES.c.recorded_us.is_not(None), *_conditions(wanted))
            .order_by(EPISODES.c.recorded_us.desc(), EPISODES.c.episode_id.desc())
            .limit(limit)
        )
        if after is not None:
            key = tuple_(EPISODES.c.recorded_us, EPISODES.c.episode_id)
            query = query.where(key < (after.recorded_us, after.episode_id))
        return await self._db.run(lambda connection: _episodes(connection, query))

    async def position(self) -> int:
        """Position of the newest change."""
        query = select(FEED.c.position)
        return int(await self._db.run(lambda connection: connection.execute(query).scalar_one()))

    async def changes(self, wanted: TrajectoryFilter, after: int, limit: int) -> list[FeedChange]:
        """Recorded trajectories that changed after a position, oldest change first."""
        query = (
            select(EPISODES)
            .where(EPISODES.c.changed > after, EPISODES.c.body_key.is_not(None), *_conditions(wanted))
            .order_by(EPISODES.c.changed)
            .limit(limit)
        )
        return await self._db.run(
            lambda connection: [
                FeedChange(row["changed"], episode_of(row)) for row in connection.execute(query).mappings()
            ]
        )

    async def ledger(self, run_id: str, num_unsettled: int, *, only: Sequence[str] = ()) -> Ledger:
        """The equation of a run ("" for all), and the oldest unsettled episodes by name: where `only` names
        episodes, of these."""
        return await self._db.run(lambda connection: _ledger(connection, run_id, num_unsettled, only))

    async def unchecked(self, limit: int) -> list[Episode]:
        """Recorded trajectories whose bodies were not checked yet, oldest first."""
        query = select(EPISODES).where(UNCHECKED).order_by(EPISODES.c.recorded_us).limit(limit)
        return await self._db.run(lambda connection: _episodes(connection, query))

    async def mark_checked(self, episode_ids: Sequence[str]) -> None:
        """Mark their bodies as good."""
        query = update(EPISODES).where(EPISODES.c.episode_id.in_(episode_ids)).values(body_checked=true())
        await self._db.run(lambda connection: connection.execute(query).rowcount)

    async def quarantine(self, episode: Episode, reason: str) -> None:
        """Mark a trajectory whose body cannot be used, and publish that with the same transaction."""
        await self._db.run(lambda connection: quarantine(connection, episode, reason))


def _project(connection: Connection, facts: Sequence[EpisodeFact]) -> int:
    position = lock_feed(connection)
    before = load_episodes(connection, {fact.identity.episode_id for fact in facts})
    removed = _removed(
        connection, {own_run(fact) for fact in facts if fact.identity.episode_id not in before}
    )
    after = dict(before)
    for fact in facts:
        episode_id = fact.identity.episode_id
        if episode_id not in before and (own_run(fact) in removed or is_client_run(own_run(fact))):
            telemetry.LATE_FACTS.inc()
            continue
        after[episode_id] = fold(after.get(episode_id), fact)
    changes = [(before.get(key), new) for key, new in after.items() if before.get(key) != new]
    if not changes:
        return 0
    rows = [row_of(new, position + index) for index, (_, new) in enumerate(changes, start=1)]
    dialect = connection.dialect.name
    connection.execute(_insert(dialect, EPISODES, ("episode_id",), None), rows)
    for delta in deltas(changes):
        _count(connection, delta)
    move_feed(connection, position + len(rows))
    return len(rows)


def lock_feed(connection: Connection) -> int:
    """The newest position. Another projection waits here until this transaction ends."""
    return int(connection.execute(_LOCKED_POSITION).scalar_one())


def move_feed(connection: Connection, position: int) -> None:
    """Set the newest position, under its lock."""
    connection.execute(_MOVE, {"moved_to": position})


def load_episodes(connection: Connection, episode_ids: set[str]) -> dict[str, Episode]:
    """The rows of these, by episode id."""
    ids = sorted(episode_ids)
    found: dict[str, Episode] = {}
    for start in range(0, len(ids), _IDS_PER_QUERY):
        some = {"ids": ids[start : start + _IDS_PER_QUERY]}
        found |= {row["episode_id"]: episode_of(row) for row in connection.execute(_BY_ID, some).mappings()}
    return found


def run_of_episode(episode_id: str) -> str:
    """The run that requested an episode, which its id says; empty for an id that is none."""
    group = parse_group_id(group_of_episode(episode_id))
    return "" if group is None else group.run_id


def own_run(fact: EpisodeFact) -> str:
    """The run that requested the episode; a step may know another run alone."""
    return run_of_episode(fact.identity.episode_id) or fact.identity.run_id


def _removed(connection: Connection, run_ids: set[str]) -> set[str]:
    """Those of which retention removed rows: a row that is missing was removed, and was counted."""
    known = select(REMOVED_RUNS.c.run_id).where(owned(REMOVED_RUNS), REMOVED_RUNS.c.run_id.in_(run_ids))
    return set(connection.execute(known).scalars()) if run_ids else set()


def _count(connection: Connection, delta: CounterDelta) -> None:
    dialect, run = connection.dialect.name, {"tenant": delta.tenant, "run_id": delta.run_id}
    labels = delta.by_label.items()
    rows = [
        {**run, "state": int(state), "reason": reason, "count": count} for (state, reason), count in labels
    ]
    if rows:
        connection.execute(_insert(dialect, LEDGER, (*run, "state", "reason"), ("count",)), rows)
    if delta.conflicts or delta.trained_twice:
        alarm = {"conflicts": delta.conflicts, "trained_twice": delta.trained_twice}
        connection.execute(_insert(dialect, ALARMS, tuple(run), tuple(alarm)), [{**run, **alarm}])


@cache
def _insert(dialect: str, table: Table, key: tuple[str, ...], numbers: tuple[str, ...] | None) -> Any:
    """INSERT that adds to `numbers` of a known row, or without them replaces it all. Kept: building one costs
    more than running it. Both dialects know ON CONFLICT, SQLAlchemy has one class for each."""
    insert = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    if numbers is None:
        others = (column.name for column in table.columns if column.name not in key)
        values: dict[str, Any] = {name: insert.excluded[name] for name in others}
    else:
        values = {name: table.c[name] + insert.excluded[name] for name in numbers}
    return insert.on_conflict_do_update(index_elements=list(key), set_=values)


def _episodes(connection: Connection, query: Select[Any]) -> list[Episode]:
    return [episode_of(row) for row in connection.execute(query).mappings()]


def _conditions(wanted: TrajectoryFilter) -> list[Any]:
    equal = {
        "run_id": wanted.run_id,
        "model": wanted.model,
        "group_id": wanted.group_id,
        "task_slug": wanted.task_slug,
        "family": wanted.family,
        "purpose": wanted.purpose and int(PURPOSE_NUMBERS[wanted.purpose]),
    }
    conditions: list[Any] = [owned(EPISODES, **{name: value for name, value in equal.items() if value})]
    if wanted.min_reward is not None:
        conditions.append(EPISODES.c.reward >= wanted.min_reward)
    if wanted.max_reward is not None:
        conditions.append(EPISODES.c.reward <= wanted.max_reward)
    if wanted.version is not None:
        span = EPISODES.c.oldest_version, EPISODES.c.newest_version
        conditions.append(literal(wanted.version).between(*span))
    if wanted.failure_kind:
        failed = and_(EPISODES.c.state == int(LedgerState.FAILED), EPISODES.c.reason == wanted.failure_kind)
        conditions.append(or_(EPISODES.c.failure_kind == wanted.failure_kind, failed))
    if wanted.success is not None:
        conditions.append(EPISODES.c.success.is_(wanted.success))
    conditions += _session_conditions(wanted)
    if wanted.state is not None:
        conditions.append(EPISODES.c.state == int(wanted.state))
    else:
        conditions.append(EPISODES.c.state != int(LedgerState.CLIENT_GRADED))
    return conditions


def _session_conditions(wanted: TrajectoryFilter) -> Iterator[Any]:
    run_id = EPISODES.c.run_id
    if wanted.recorded_sessions or wanted.session_group or wanted.labels:
        yield run_id.startswith(RECORDED_RUN, autoescape=True)
    if wanted.session_group:  # as identities.recorded_group_id makes it
        digest = func.substr(EPISODES.c.task_digest, 1, RECORDED_DIGEST_CHARS)
        yield EPISODES.c.group_id == run_id + f"-{wanted.session_group}-" + digest
    if wanted.labels:
        yield LABELLED
    yield from map(has_label, wanted.labels)
    if wanted.graded_since_us is not None:
        yield EPISODES.c.graded_us >= wanted.graded_since_us
    if wanted.graded_before_us is not None:
        yield EPISODES.c.graded_us < wanted.graded_before_us


def _ledger(connection: Connection, run_id: str, num_unsettled: int, only: Sequence[str]) -> Ledger:
    of_run = {"run_id": run_id} if run_id else {}
    counts = select(LEDGER.c.state, LEDGER.c.reason, func.sum(LEDGER.c.count)).where(owned(LEDGER, **of_run))
    sums = select(func.sum(ALARMS.c.conflicts), func.sum(ALARMS.c.trained_twice))
    alarms = sums.where(owned(ALARMS, **of_run))
    unsettled = and_(UNSETTLED, owned(EPISODES, **of_run))
    oldest = select(func.min(EPISODES.c.since_us)).where(unsettled)
    of_these = and_(unsettled, EPISODES.c.episode_id.in_(only)) if only else unsettled
    named = select(EPISODES).where(of_these).order_by(EPISODES.c.since_us).limit(num_unsettled)
    conflicts, trained_twice = connection.execute(alarms).one()
    return Ledger(
        counts={
            (LedgerState(state), reason): int(count)
            for state, reason, count in connection.execute(counts.group_by(LEDGER.c.state, LEDGER.c.reason))
        },
        conflicts=int(conflicts or 0),
        trained_twice=int(trained_twice or 0),
        oldest_unsettled_us=connection.execute(oldest).scalar_one(),
        unsettled=tuple(_episodes(connection, named)) if num_unsettled else (),
    )


def quarantine(connection: Connection, episode: Episode, reason: str) -> None:
    """Mark a trajectory, and publish that with the same transaction."""
    position = lock_feed(connection) + 1
    marked = connection.execute(
        update(EPISODES)
        .where(EPISODES.c.episode_id == episode.identity.episode_id, EPISODES.c.body_removed_us.is_(None))
        .values(quarantine=reason, body_checked=true(), changed=position)
    )
    if marked.rowcount == 0:  # retention removed the body meanwhile
        return
    move_feed(connection, position)
    event = views.quarantined_to_wire(episode, reason)
    event_id = events.trajectory_quarantined(event.episode.trajectory_id)
    enqueue(connection, event, model=event.episode.model, event_id=event_id)
