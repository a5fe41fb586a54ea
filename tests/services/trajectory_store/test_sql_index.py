"""The projection on a real SQLite file: counters equal a recount, pages and feed miss nothing."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from sqlalchemy import Connection, event, func, select
from tests.services.deliveries import delivered
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL, START

from episodes import EpisodeIdentity
from service_kit.errors import StoreFull
from sql_store import Database, MigratedDatabase
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.tables import EPISODES
from trajectory_store.domain.facts import EpisodeFact, LedgerState
from trajectory_store.domain.queries import PageKey, TrajectoryFilter
from trajectory_store.handlers import FACTS


def facts(*messages: Message) -> list[EpisodeFact]:
    return [
        fact
        for message in messages
        for fact in FACTS.handle(delivered(message, START, f"00-{'ab' * 16}-{'cd' * 8}-01"))
    ]


def _history(rng: random.Random, num_episodes: int) -> list[Message]:
    history: list[Message] = []
    for number in range(num_episodes):
        run = rng.choice(["run-1", "run-2", "run-3"])
        purpose = EVAL if run == "run-3" else events.TRAIN
        path = [
            events.requested(number, run=run, purpose=purpose),
            events.recorded(number, run=run, purpose=purpose),
            events.graded(number, run=run, purpose=purpose),
            rng.choice(
                [
                    events.failed(number, run=run),
                    events.cancelled(number, run=run),
                    events.settled([number], "trained", step=rng.randrange(3), run=run),
                    events.settled([number], "excluded", reason="stale", run=run),
                    events.stepped([number], rng.randrange(3), run=run),
                    events.settled([number], "trained", step=rng.randrange(3), run=run, by="run-2"),
                    events.stepped([number], rng.randrange(3), run=run, by="run-2"),
                ]
            ),
        ]
        first = rng.randint(0, 3)
        history += path[first : rng.randint(first + 1, 4)]
    history += rng.choices(history, k=num_episodes)
    rng.shuffle(history)
    return history


@pytest.mark.parametrize("seed", range(4))
async def test_counters_equal_a_recount_after_every_batch(index: SqlIndex, db: Database, seed: int) -> None:
    rng = random.Random(seed)
    history = _history(rng, 60)
    while history:
        size = rng.randint(1, 40)
        await index.project(facts(*history[:size]))
        history = history[size:]
        recount = await db.run(
            lambda connection: Counter(
                LedgerState(state) for (state,) in connection.execute(select(EPISODES.c.state))
            )
        )
        ledger = await index.ledger("", 0)
        per_run = [await index.ledger(run, 1000) for run in ("run-1", "run-2", "run-3")]
        assert ledger.requested == ledger.settled + ledger.in_flight == recount.total()
        assert ledger.settled == sum(count for state, count in recount.items() if state.is_terminal)
        assert sum(one.requested for one in per_run) == ledger.requested
        assert sum(one.conflicts for one in per_run) == ledger.conflicts
        assert all(len(one.unsettled) == one.in_flight for one in per_run)
        youngest = [one.identity.episode_id for ledger in per_run for one in ledger.unsettled[-1:]]
        for run, episode_id in ((episode.rsplit("-g", 1)[0], episode) for episode in youngest):
            named = (await index.ledger(run, 1, only=[episode_id])).unsettled
            assert [one.identity.episode_id for one in named] == [episode_id]


async def test_trained_episodes_of_an_evaluation_move_within_its_own_counters(index: SqlIndex) -> None:
    """Eight episodes of run-e, of which run-t trains one group of four, folded in the worst order."""
    drawn, rest = range(4), range(4, 8)
    await index.project(facts(events.stepped(drawn, 3, run="run-e", by="run-t")))
    assert (await index.ledger("run-t", 0)).by_label == {"trained": 4}, "nothing else is known until now"
    await index.project(facts(*(events.graded(number, run="run-e", purpose=EVAL) for number in range(8))))
    assert (await index.ledger("run-t", 0)).requested == 0
    await index.project(
        facts(
            events.settled(drawn, "trained", step=3, run="run-e", by="run-t"),
            events.settled(rest, "released", reason="zero_spread", run="run-e", by="run-t"),
            *(events.requested(number, run="run-e", purpose=EVAL) for number in range(8)),
        )
    )
    ledger = await index.ledger("run-e", 10)
    assert ledger.by_label == {"trained": 4, "evaluated": 4}
    assert (ledger.requested, ledger.settled, ledger.in_flight) == (8, 8, 0)
    assert (ledger.conflicts, ledger.trained_twice) == (0, 0)
    assert (await index.ledger("run-t", 0)).requested == 0
    trained = await index.page(
        TrajectoryFilter(run_id="run-e", purpose=EVAL, state=LedgerState.TRAINED), None, 10
    )
    assert [(row.trained_by_run, row.step, row.grade is not None) for row in trained] == [
        ("run-t", 3, True)
    ] * 4
    await index.project(facts(events.settled(drawn, "trained", step=3, run="run-e", by="run-u")))
    assert (await index.ledger("run-e", 0)).trained_twice == 4
    assert (await index.ledger("run-e", 0)).by_label == {"trained": 4, "evaluated": 4}
    again = await index.find_episode(events.episode_id(0, "run-e"))
    assert again is not None
    assert again.trained_by_run == "run-t"


async def test_a_projection_survives_a_restart_and_a_replay_from_the_beginning(
    index: SqlIndex, db: Database, sql_url: str
) -> None:
    history = _history(random.Random(5), 40)
    await index.project(facts(*history))
    before = await index.ledger("", 1000)
    await db.stop()
    again = MigratedDatabase(sql_url, "trajectory_store")
    await again.start()
    reopened = SqlIndex(again)
    assert await reopened.ledger("", 1000) == before
    assert await reopened.project(facts(*history)) == 0
    assert await reopened.ledger("", 1000) == before
    await again.stop()


async def test_pages_hold_every_recorded_trajectory_once_newest_first(index: SqlIndex) -> None:
    await index.project(facts(*(events.requested(number) for number in range(25))))
    await index.project(facts(*(events.recorded(number) for number in range(23))))
    seen: list[str] = []
    after: PageKey | None = None
    while page := await index.page(TrajectoryFilter(run_id="run-1"), after, 5):
        seen += [row.identity.episode_id for row in page]
        record = page[-1].record
        assert record is not None
        assert record.trace_id == "ab" * 16
        after = PageKey(record.recorded_us, page[-1].identity.episode_id)
    assert seen == [events.episode_id(number) for number in reversed(range(23))]


async def test_filters_select_what_they_say(index: SqlIndex) -> None:
    messages: list[Message] = []
    for number in range(12):
        purpose = EVAL if number % 2 else events.TRAIN
        messages += [
            events.requested(number, purpose=purpose),
            events.graded(number, purpose=purpose, reward=number / 12),
        ]
    await index.project(facts(*messages))

    async def count(wanted: TrajectoryFilter) -> int:
        return len(await index.page(wanted, None, 100))

    assert await count(TrajectoryFilter()) == 12
    assert await count(TrajectoryFilter(run_id="run-2")) == 0
    assert await count(TrajectoryFilter(group_id=events.group_id(0))) == 4
    assert await count(TrajectoryFilter(task_slug="task-1")) == 4
    assert await count(TrajectoryFilter(purpose=EVAL)) == 6
    assert await count(TrajectoryFilter(min_reward=0.5)) == 6
    assert await count(TrajectoryFilter(success=True)) == 5
    assert await count(TrajectoryFilter(state=LedgerState.EVALUATED)) == 6


async def test_the_feed_shows_each_change_once_in_commit_order(index: SqlIndex) -> None:
    start = await index.position()
    await index.project(facts(*(events.recorded(number) for number in range(5))))
    await index.project(facts(events.graded(2), events.graded(4)))
    changes = await index.changes(TrajectoryFilter(), start, 100)
    names = [change.episode.identity.episode_id for change in changes]
    assert names == [events.episode_id(number) for number in (0, 1, 3, 2, 4)]
    positions = [change.position for change in changes]
    assert positions == sorted(set(positions))
    assert await index.changes(TrajectoryFilter(), positions[-1], 100) == []
    await index.project(facts(events.graded(2)))
    assert await index.changes(TrajectoryFilter(), positions[-1], 100) == []


async def test_a_full_disk_is_typed_and_nothing_is_lost_after_room_is_made(sqlite_db: Database) -> None:
    db, index = sqlite_db, SqlIndex(sqlite_db)
    await index.project(facts(events.requested(0)))
    pages = await db.run(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    await db.run(lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}"))
    flood = facts(*(events.requested(number) for number in range(2000)))
    with pytest.raises(StoreFull, match="is full"):
        await index.project(flood)
    assert (await index.ledger("", 0)).requested == 1
    await db.run(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count=1000000"))
    await index.project(flood)
    assert (await index.ledger("", 0)).requested == 2000


async def test_two_replicas_that_fold_the_same_facts_at_once_count_them_once(
    index: SqlIndex, sql_url: str
) -> None:
    other_db = Database(sql_url)
    await other_db.start()
    other = SqlIndex(other_db)
    history = _history(random.Random(11), 80)
    batches = [facts(*history[start : start + 20]) for start in range(0, len(history), 20)]
    await asyncio.gather(*(one.project(batch) for batch in batches for one in (index, other)))
    ledger = await index.ledger("", 1000)
    assert ledger == await other.ledger("", 1000)
    assert ledger.requested == len(await index.page(TrajectoryFilter(), None, 1000)) + sum(
        row.record is None for row in ledger.unsettled
    ) + await _settled_without_record(other_db)
    positions = [change.position for change in await index.changes(TrajectoryFilter(), 0, 1000)]
    assert positions == sorted(set(positions))
    await other_db.stop()


async def _settled_without_record(db: Database) -> int:
    query = select(func.count()).where(EPISODES.c.settled, EPISODES.c.body_key.is_(None))
    return int(await db.run(lambda connection: connection.execute(query).scalar_one()))


async def test_what_is_asked_often_is_answered_from_an_index(sqlite_db: Database) -> None:
    """At a million episodes a scan takes half a second; SQLite says what it would do."""
    statements: list[str] = []

    def spy(connection: Connection) -> None:
        def note(_: object, __: object, statement: str, *___: object) -> None:
            statements.append(statement)

        event.listen(connection.engine, "before_cursor_execute", note)

    index = SqlIndex(sqlite_db)
    await sqlite_db.run(spy)
    await index.ledger("", 1000)
    await index.ledger("run-1", 1000)
    await index.unchecked(32)
    await index.page(TrajectoryFilter(run_id="run-1"), None, 10)
    await index.page(TrajectoryFilter(), None, 10)
    await index.changes(TrajectoryFilter(), 5, 10)
    selects = [statement for statement in statements if "FROM episodes" in statement]
    assert len(selects) == 8

    def plans(connection: Connection) -> dict[str, str]:
        found = {}
        for statement in selects:
            values = (1,) * statement.count("?")
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            found[statement] = "; ".join(str(row[3]) for row in rows)
        return found

    for statement, plan in (await sqlite_db.run(plans)).items():
        assert "USING" in plan, f"{plan}: {statement}"


def _session(
    number: int, group: str, at: int, run: str = "sessions-key00001", labels: tuple[str, ...] = ()
) -> EpisodeFact:
    """A graded session, or an episode of another run."""
    digest = f"{number:x}" * 64
    (fact,) = facts(events.graded(number, run=run, purpose=EVAL))
    assert isinstance(fact.identity, EpisodeIdentity)
    identity = replace(
        fact.identity,
        group_id=f"{run}-{group}-{digest[:16]}",
        task_digest=digest,
        episode_id=f"session-{number}",
        labels=labels,
    )
    assert fact.grade is not None
    return replace(fact, identity=identity, grade=replace(fact.grade, graded_us=at))


async def test_recorded_sessions_are_found_by_key_group_and_moment_of_their_reward(index: SqlIndex) -> None:
    await index.project(
        [
            _session(1, "nightly", 10),
            _session(2, "nightly", 20),
            _session(3, "other-nightly", 20),
            _session(4, "nightly", 30, run="sessions-key00002"),
            _session(5, "nightly", 40, run="run-1"),
        ]
    )

    async def found(**wanted: Any) -> list[int]:
        page = await index.page(TrajectoryFilter(**wanted), None, 9)
        return sorted(int(one.identity.episode_id.removeprefix("session-")) for one in page)

    assert await found() == [1, 2, 3, 4, 5]
    assert await found(recorded_sessions=True) == [1, 2, 3, 4]
    assert await found(session_group="nightly") == [1, 2, 4]
    assert await found(session_group="nightl_") == []
    assert await found(session_group="nightly", run_id="sessions-key00001") == [1, 2]
    assert await found(recorded_sessions=True, graded_since_us=20, graded_before_us=30) == [2, 3]


async def test_recorded_sessions_are_found_by_all_of_their_labels(index: SqlIndex) -> None:
    both = ("env:prod", "flow:refund")
    await index.project(
        [
            _session(1, "a", 10, labels=both),
            _session(2, "a", 20, labels=("flow:refund",)),
            _session(3, "b", 30, labels=("flow:refund-2", "my.flow:refund")),
            _session(4, "b", 40, labels=("a_b:x",)),
            _session(5, "b", 50),
        ]
    )

    async def found(*labels: str, **wanted: Any) -> list[int]:
        page = await index.page(TrajectoryFilter(labels=labels, **wanted), None, 9)
        return sorted(int(one.identity.episode_id.removeprefix("session-")) for one in page)

    assert await found("flow:refund") == [1, 2], "a label is neither a beginning nor an end of another one"
    assert await found("flow:refund", "env:prod") == await found("env:prod") == [1]
    assert await found("flow:refund", graded_since_us=20) == [2]
    assert (await found("a_b:x"), await found("axb:x"), await found("a_b:%")) == ([4], [], [])
    assert await found("flow:") == []
    labels = {one.identity.episode_id: one.identity for one in await index.page(TrajectoryFilter(), None, 9)}
    kept = labels["session-1"], labels["session-5"]
    assert [one.labels for one in kept if isinstance(one, EpisodeIdentity)] == [both, ()]


async def test_a_label_is_looked_for_among_labelled_sessions_alone(index: SqlIndex) -> None:
    """In the order of an index, so that a page ends where it is full."""
    asked: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        if "FROM episodes" in statement and not statement.startswith("EXPLAIN"):
            asked.append((statement, values))

    database = index._db
    await database.run(lambda connection: event.listen(connection.engine, "before_cursor_execute", note))
    label = ("flow:refund",)
    await index.page(TrajectoryFilter(labels=label), None, 10)
    await index.page(TrajectoryFilter(labels=label, model="m", recorded_sessions=True), None, 10)
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    def plan_of(connection: Connection, statement: str, values: Any) -> str:
        if database.dialect != "sqlite":  # tables of a test are so small that it would read them whole
            for way in ("enable_seqscan", "enable_bitmapscan"):
                connection.exec_driver_sql(f"SET LOCAL {way} = off")
        return "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}", values))

    plans = [await database.run(partial(plan_of, statement=one, values=values)) for one, values in asked]
    assert len(plans) == 2
    for plan, name in zip(plans, ("ix_episodes_labelled", "ix_episodes_model_labelled"), strict=True):
        assert name in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan
