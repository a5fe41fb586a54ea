"""What monitors of reward hacks keep, in SQL: how far they read, their memory, their alarms, reviews.

One cursor orders all writers: a batch is kept only where the cursor still stands where it was read from, so
several replicas may watch, and each episode is seen once.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, RowMapping, Table, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from identities.tenants import OWN_TENANT
from reward_monitors import Alarm, MonitorKind, RunMonitors
from sql_store import Database, owned
from trajectory_store.adapters.rows import episode_of
from trajectory_store.adapters.sql_index import load_episodes, quarantine
from trajectory_store.adapters.tables import (
    EPISODES,
    MONITOR_CURSOR,
    MONITOR_STATES,
    MONITORED,
    REVIEWS,
    REWARD_ALARMS,
)
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.hacks import HACK, KeptAlarm, Review, SeenEpisode, SignatureBatch, Verdict
from trajectory_store.domain.ledger import Episode

log = logging.getLogger(__name__)
_STATES: Final = TypeAdapter(RunMonitors)
_KEPT_US: Final = 7 * 24 * 3600 * 1_000_000
"""Monitors of a run that nothing happened in for so long are forgotten."""
_MAX_ROWS: Final = 1000
_MAX_BATCHES: Final = 200
_SAID: Final = ("dismissed_us", "dismissed_by", "note")
_IS_WATCHED: Final = (
    or_(EPISODES.c.graded_us.is_not(None), EPISODES.c.state == int(LedgerState.FAILED)),
    EPISODES.c.purpose != 0,
    EPISODES.c.state != int(LedgerState.CLIENT_GRADED),
)
"""Of an episode that the monitors are shown."""


@dataclass(frozen=True, slots=True)
class FreshEpisodes:
    """Ended episodes that no monitor has seen, in the order of the feed. after, until: positions of it."""

    episodes: Sequence[Episode]
    after: int
    until: int


@dataclass(frozen=True, slots=True)
class RunWatch:
    """One run after a batch: its monitors, and those of its alarms that changed."""

    run_id: str
    monitors: RunMonitors
    alarms: Sequence[KeptAlarm]


class SqlMonitors:
    """Each method is one transaction; all raise Unavailable."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def fresh(self, limit: int) -> FreshEpisodes:
        """What is to be seen next."""
        return await self._db.run(lambda connection: _fresh(connection, limit))

    async def monitors(self, run_id: str) -> tuple[RunMonitors, dict[str, KeptAlarm]]:
        """Of a run, as they were kept; new ones for a run that was never seen. Where what was kept cannot be
        read, new ones too, which know of no alarm: those that are open stay so."""

        def read(connection: Connection) -> tuple[RunMonitors, dict[str, KeptAlarm]]:
            query = select(MONITOR_STATES.c.state).where(owned(MONITOR_STATES, run_id=run_id))
            state = connection.execute(query).scalar_one_or_none()
            try:
                known = RunMonitors() if state is None else _STATES.validate_json(state)
            except ValidationError:
                log.exception("monitors_begin_anew", extra={"run_id": run_id})
                return RunMonitors(), {}
            return known, {one.alarm.kind.value: one for one in _alarms(connection, [run_id], False)}

        return await self._db.run(read)

    async def keep(
        self, fresh: FreshEpisodes, seen: Sequence[SeenEpisode], runs: Sequence[RunWatch], now_us: int
    ) -> bool:
        """All of a batch, with its quarantines. False: another replica kept it first, and nothing changed."""
        return await self._db.run(lambda connection: _keep(connection, fresh, seen, runs, now_us))

    async def num_unseen(self, run_ids: Sequence[str], before_us: int) -> int:
        """Episodes of these runs that ended before a moment, as the index knows, and that no monitor saw."""
        after = select(MONITOR_CURSOR.c.position).scalar_subquery()
        is_seen = exists().where(owned(MONITORED, episode_id=EPISODES.c.episode_id)).correlate(EPISODES)
        ended_us = func.coalesce(EPISODES.c.graded_us, EPISODES.c.updated_us)
        query = (
            select(func.count(EPISODES.c.episode_id))
            .where(owned(EPISODES), EPISODES.c.run_id.in_(run_ids), EPISODES.c.changed > after)
            .where(*_IS_WATCHED, ended_us < before_us, ~is_seen)
        )
        return await self._db.run(lambda connection: int(connection.execute(query).scalar_one()))

    async def alarms(self, run_ids: Sequence[str], *, only_open: bool) -> list[KeptAlarm]:
        """Of these runs, or of all; newest first."""
        return await self._db.run(lambda connection: _alarms(connection, run_ids, only_open))

    async def dismiss(self, run_id: str, kind: str, by: str, note: str, now_us: int) -> KeptAlarm | None:
        """The alarm as it is then; None: there is none."""

        def write(connection: Connection) -> KeptAlarm | None:
            wanted = owned(REWARD_ALARMS, run_id=run_id, kind=kind)
            values = {"dismissed_us": now_us, "dismissed_by": by, "note": note}
            connection.execute(update(REWARD_ALARMS).where(wanted).values(values))
            found = connection.execute(select(REWARD_ALARMS).where(wanted)).mappings().first()
            return None if found is None else _alarm(found)

        return await self._db.run(write)

    async def review(self, review: Review) -> list[Episode]:
        """Keep a verdict; the episodes that `hacked` quarantines, the reviewed one first."""
        return await self._db.run(lambda connection: _review(connection, review))

    async def reviews(self, run_id: str) -> list[Review]:
        """Newest first."""
        query = (
            select(REVIEWS)
            .where(owned(REVIEWS, run_id=run_id))
            .order_by(REVIEWS.c.reviewed_us.desc())
            .limit(_MAX_ROWS)
        )
        rows = await self._db.run(lambda connection: list(connection.execute(query).mappings()))
        return [
            Review(
                row["episode_id"], row["run_id"], Verdict(row["verdict"]), row["reviewer"], row["note"],
                row["reviewed_us"],
            )
            for row in rows
        ]  # fmt: skip

    async def signatures(self, run_id: str) -> list[SignatureBatch]:
        """Of a run, the largest sums of rewards first."""
        return await self._db.run(lambda connection: _signatures(connection, run_id))

    async def num_confirmed(self, run_id: str, top: int) -> int:
        """Trajectories of a run that somebody reviewed as solved, of those that earned as much as the `top`
        best ones. Quarantined ones are none of them."""
        return await self._db.run(lambda connection: _num_confirmed(connection, run_id, top))


def _signatures(connection: Connection, run_id: str) -> list[SignatureBatch]:
    same = and_(MONITORED.c.tenant == EPISODES.c.tenant, MONITORED.c.episode_id == EPISODES.c.episode_id)
    reward, signature = EPISODES.c.reward, MONITORED.c.signature
    place = func.row_number().over(partition_by=signature, order_by=(reward.desc(), EPISODES.c.episode_id))
    ranked = (
        select(signature, MONITORED.c.hits, EPISODES.c.episode_id, reward, place.label("place"))
        .join_from(MONITORED, EPISODES, same)
        .where(owned(MONITORED, run_id=run_id), signature != "")
        .where(reward.is_not(None), EPISODES.c.quarantine == "")
        .subquery()
    )
    best = case((ranked.c.place == 1, ranked.c.episode_id))
    total = func.sum(ranked.c.reward)
    query = (
        select(
            ranked.c.signature,
            func.max(ranked.c.hits).label("hits"),
            func.count().label("num"),
            func.max(ranked.c.reward).label("highest"),
            func.avg(ranked.c.reward).label("mean"),
            func.max(best).label("best"),
        )
        .group_by(ranked.c.signature)
        .order_by(total.desc(), ranked.c.signature)
        .limit(_MAX_BATCHES)
    )
    rows = connection.execute(query).mappings()
    return [
        SignatureBatch(
            row["signature"], tuple(filter(None, row["hits"].split(","))), row["num"], row["highest"],
            row["mean"], row["best"],
        )
        for row in rows
    ]  # fmt: skip


def _num_confirmed(connection: Connection, run_id: str, top: int) -> int:
    reward = EPISODES.c.reward
    is_sound = owned(EPISODES, run_id=run_id), reward.is_not(None), EPISODES.c.quarantine == ""
    nth = select(reward).where(*is_sound).order_by(reward.desc()).offset(top - 1).limit(1)
    least = connection.execute(nth).scalar_one_or_none()
    same = and_(REVIEWS.c.tenant == EPISODES.c.tenant, REVIEWS.c.episode_id == EPISODES.c.episode_id)
    solved = (
        select(func.count(EPISODES.c.episode_id.distinct()))
        .join_from(REVIEWS, EPISODES, same)
        .where(*is_sound, REVIEWS.c.verdict == int(Verdict.SOLVED))
    )
    return int(connection.execute(solved if least is None else solved.where(reward >= least)).scalar_one())


def _fresh(connection: Connection, limit: int) -> FreshEpisodes:
    after = int(connection.execute(select(MONITOR_CURSOR.c.position)).scalar_one())
    query = (
        select(EPISODES)
        .where(EPISODES.c.changed > after, *_IS_WATCHED)
        .order_by(EPISODES.c.changed)
        .limit(limit)
    )
    rows = list(connection.execute(query).mappings())
    known = _known(connection, [row["episode_id"] for row in rows])
    episodes = [episode_of(row) for row in rows if row["episode_id"] not in known]
    return FreshEpisodes(episodes, after, max((row["changed"] for row in rows), default=after))


def _known(connection: Connection, episode_ids: Collection[str]) -> set[str]:
    query = select(MONITORED.c.episode_id).where(owned(MONITORED), MONITORED.c.episode_id.in_(episode_ids))
    return set(connection.execute(query).scalars()) if episode_ids else set()


def _keep(
    connection: Connection,
    fresh: FreshEpisodes,
    seen: Sequence[SeenEpisode],
    runs: Sequence[RunWatch],
    now_us: int,
) -> bool:
    moved = connection.execute(
        update(MONITOR_CURSOR).where(MONITOR_CURSOR.c.position == fresh.after).values(position=fresh.until)
    )
    if moved.rowcount == 0:
        return False
    rows = [
        {
            "tenant": OWN_TENANT,
            "episode_id": one.episode.identity.episode_id,
            "run_id": one.episode.identity.run_id,
            "signature": one.seen.signature,
            "hits": ",".join(one.seen.hits),
        }
        for one in seen
    ]
    _upsert(connection, MONITORED, ("tenant", "episode_id"), rows)
    for run in runs:
        state = {"state": _STATES.dump_json(run.monitors), "updated_us": now_us}
        _upsert(connection, MONITOR_STATES, ("tenant", "run_id"), [{**_run(run.run_id), **state}])
        _keep_alarms(connection, run.alarms)
    old = MONITOR_STATES.c.updated_us < now_us - _KEPT_US
    connection.execute(delete(MONITOR_STATES).where(old))
    said = _said_hacked(connection, [run.run_id for run in runs], {one.seen.signature for one in seen} - {""})
    for one in seen:
        why = one.seen.quarantine or said.get((one.episode.identity.run_id, one.seen.signature), "")
        if why and one.episode.record is not None and not one.episode.quarantine:
            quarantine(connection, one.episode, HACK + why)
    return True


def _said_hacked(
    connection: Connection, run_ids: Collection[str], signatures: Collection[str]
) -> dict[tuple[str, str], str]:
    """By run and signature, of which episode a person said that it is a hack: its like is one, too."""
    same = and_(MONITORED.c.tenant == REVIEWS.c.tenant, MONITORED.c.episode_id == REVIEWS.c.episode_id)
    query = (
        select(MONITORED.c.run_id, MONITORED.c.signature, REVIEWS.c.reviewer, REVIEWS.c.episode_id)
        .join_from(REVIEWS, MONITORED, same)
        .where(owned(REVIEWS, verdict=int(Verdict.HACKED)), REVIEWS.c.run_id.in_(run_ids))
        .where(MONITORED.c.signature.in_(signatures))
    )
    rows = connection.execute(query) if signatures else ()
    return {(run, signature): _by(reviewer, episode) for run, signature, reviewer, episode in rows}


def _by(reviewer: str, episode_id: str) -> str:
    return f"{reviewer} says so of {episode_id}"


def _keep_alarms(connection: Connection, alarms: Iterable[KeptAlarm]) -> None:
    """What a person said meanwhile of the same alarm stays; one that was raised anew has nothing said."""
    rows = [_alarm_row(kept) for kept in alarms]
    _upsert(
        connection, REWARD_ALARMS, ("tenant", "run_id", "kind"), rows, unless_same="raised_us", keep=_SAID
    )


def _run(run_id: str) -> dict[str, str]:
    return {"tenant": OWN_TENANT, "run_id": run_id}


def _alarms(connection: Connection, run_ids: Sequence[str], only_open: bool) -> list[KeptAlarm]:
    wanted = [owned(REWARD_ALARMS)]
    if run_ids:
        wanted.append(REWARD_ALARMS.c.run_id.in_(run_ids))
    if only_open:
        wanted.append(and_(REWARD_ALARMS.c.cleared_us.is_(None), REWARD_ALARMS.c.dismissed_us.is_(None)))
    query = select(REWARD_ALARMS).where(*wanted).order_by(REWARD_ALARMS.c.raised_us.desc()).limit(_MAX_ROWS)
    return [_alarm(row) for row in connection.execute(query).mappings()]


def _alarm(row: RowMapping) -> KeptAlarm:
    alarm = Alarm(
        MonitorKind(row["kind"]),
        row["text"],
        row["value"],
        row["limit_value"],
        row["since_version"],
        row["version"],
        tuple(json.loads(row["trajectory_ids"])),
    )
    rest = ("raised_us", "cleared_us", "dismissed_us", "dismissed_by", "note")
    return KeptAlarm(row["run_id"], row["model"], alarm, **{name: row[name] for name in rest})


def _alarm_row(kept: KeptAlarm) -> dict[str, Any]:
    alarm = kept.alarm
    return {
        **_run(kept.run_id),
        "kind": alarm.kind.value,
        "model": kept.model,
        "text": alarm.text,
        "value": alarm.value,
        "limit_value": alarm.limit,
        "since_version": alarm.since_version,
        "version": alarm.version,
        "trajectory_ids": json.dumps(alarm.trajectories),
        "raised_us": kept.raised_us,
        "cleared_us": kept.cleared_us,
        "dismissed_us": kept.dismissed_us,
        "dismissed_by": kept.dismissed_by,
        "note": kept.note,
    }


def _review(connection: Connection, review: Review) -> list[Episode]:
    row = {
        "tenant": OWN_TENANT,
        "episode_id": review.episode_id,
        "run_id": review.run_id,
        "reviewer": review.reviewer,
        "verdict": int(review.verdict),
        "note": review.note,
        "reviewed_us": review.reviewed_us,
    }
    _upsert(connection, REVIEWS, ("tenant", "episode_id", "reviewer"), [row])
    if review.verdict is not Verdict.HACKED:
        return []
    like = _like(connection, review)
    found = load_episodes(connection, {review.episode_id, *like})
    order = [review.episode_id, *sorted(like - {review.episode_id})]
    fresh = [found[name] for name in order if name in found and not found[name].quarantine]
    fresh = [one for one in fresh if one.record is not None]
    for one in fresh:
        quarantine(connection, one, HACK + _by(review.reviewer, review.episode_id))
    return fresh


def _like(connection: Connection, review: Review) -> set[str]:
    """Episodes of the run with the signature of the reviewed one."""
    own = select(MONITORED.c.signature).where(owned(MONITORED, episode_id=review.episode_id))
    signature = connection.execute(own).scalar_one_or_none()
    if not signature:
        return set()
    like = select(MONITORED.c.episode_id).where(owned(MONITORED, run_id=review.run_id, signature=signature))
    return set(connection.execute(like).scalars())


def _upsert(
    connection: Connection,
    table: Table,
    key: tuple[str, ...],
    rows: Iterable[Mapping[str, Any]],
    *,
    unless_same: str = "",
    keep: Collection[str] = (),
) -> None:
    """keep: columns that stay as they are in a row whose column `unless_same` has the new row's value."""
    values = [dict(row) for row in rows]
    if not values:
        return
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)
    new = insert.excluded
    others: dict[str, Any] = {one.name: new[one.name] for one in table.columns if one.name not in key}
    for name in keep:
        is_same = table.c[unless_same] == new[unless_same]
        others[name] = case((is_same, table.c[name]), else_=new[name])
    connection.execute(insert.on_conflict_do_update(index_elements=list(key), set_=others), values)
