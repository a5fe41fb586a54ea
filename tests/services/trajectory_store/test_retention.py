"""Retention of bodies and rows on both databases: what it refuses, keeps, removes, and survives."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, text
from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import START
from tests.services.trajectory_store.retention_harness import MONTH, RetentionHarness, facts

from retention import Reference, checked_age
from service_kit.errors import Escaped, InvalidRequest
from service_kit.settings import SettingsError, load_settings
from sql_store import Database, MigratedDatabase
from trajectory_store.adapters.trajectory_bodies import TrajectoryBodies
from trajectory_store.domain.errors import BodyRemoved, TrajectoryRemoved
from trajectory_store.domain.queries import TrajectoryFilter
from trajectory_store.domain.retention import Removable, StorePolicy
from trajectory_store.settings import TrajectoryStoreSettings
from trajectory_store.usecases.reading import ExportTrajectories, GetTrajectory, ReadBody
from upcycle.errors import Unavailable

BODIES, EPISODES = Removable.BODIES, Removable.EPISODES


@pytest.fixture
def old(sqlite_db: Database) -> RetentionHarness:
    return RetentionHarness(sqlite_db)


@pytest.fixture
def both(db: Database) -> RetentionHarness:
    return RetentionHarness(db)


@pytest.mark.parametrize("days", ["-1", "0", "0.5", "nan", "inf", "30d", "a month", ""])
@pytest.mark.parametrize("name", ["RETENTION_BODIES_DAYS", "RETENTION_EPISODES_DAYS"])
def test_an_age_that_is_none_is_refused_by_the_name_of_its_setting(
    name: str, days: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TRAJECTORY_STORE_{name}", days)
    with pytest.raises(SettingsError, match=f"TRAJECTORY_STORE_{name}"):
        load_settings(TrajectoryStoreSettings, program="trajectory_store")


@pytest.mark.parametrize("seconds", [-86400.0, 0.0, 86399.0, float("nan"), float("inf"), 1e300])
def test_an_age_of_a_request_below_a_day_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="older_than_s"):
        checked_age(seconds)


async def test_without_an_age_everything_is_kept(old: RetentionHarness) -> None:
    await old.settle(0, 1)
    old.policy = StorePolicy()
    for what in Removable:
        report = await old.sweep(what, apply=True)
        assert (report.policy, report.number) == ("kept for ever", 0)
    assert len(old.memory.objects) == 2


async def test_a_dry_run_says_what_would_go_and_changes_nothing(old: RetentionHarness) -> None:
    await old.settle(0, 1, 2)
    before = dict(old.memory.objects)
    report = await old.sweep(BODIES, apply=False)
    assert (report.policy, report.number, report.size_bytes) == ("older than 30 days", 3, 30)
    assert report.oldest == START + timedelta(seconds=1000)
    assert old.memory.objects == before
    assert old.references.released == set()
    episode = await old.index.find_episode(events.episode_id(0, "run-e"))
    assert episode is not None
    assert episode.body_removed_us is None


async def test_what_is_younger_or_unsettled_stays(old: RetentionHarness) -> None:
    await old.settle(0)
    await old.index.project(facts(events.requested(1), events.recorded(1), events.graded(1)))
    old.now = START + timedelta(seconds=2000) + MONTH
    assert (await old.sweep(BODIES, apply=True)).number == 0, "settled exactly as long ago as the limit"
    old.now += timedelta(microseconds=1)
    report = await old.sweep(BODIES, apply=True)
    assert report.number == 1, "the graded episode of a training run is not settled"
    assert old.memory.objects == {}


@pytest.mark.parametrize("away", ["checkpoint_registry does not answer", "scenario_runner is older"])
async def test_nothing_goes_while_an_owner_of_references_cannot_be_asked(
    old: RetentionHarness, away: str
) -> None:
    await old.settle(0, 1)
    old.references.away = away
    for apply in (False, True):
        with pytest.raises(Unavailable, match=away):
            await old.sweep(BODIES, apply=apply)
    assert len(old.memory.objects) == 2


async def test_what_is_referred_to_stays_with_its_reason(both: RetentionHarness) -> None:
    old = both
    await old.settle(0, 1, run="run-gate")
    await old.settle(0, 1, 2, 3, run="run-drawn", trained_by="run-t")
    await old.settle(4, 5, run="run-drawn")
    await old.settle(0, run="run-u")
    old.references.needed = [
        Reference("run-gate", "evidence of a gate"),
        Reference("run-t", "lineage of a checkpoint", only_trained=True),
    ]
    report = await old.sweep(BODIES, apply=True)
    assert report.kept == {"evidence of a gate": 2, "lineage of a checkpoint": 4}
    assert report.number == 3, "two that did not train, and the one of run-u"
    assert len(old.memory.objects) == 6
    assert old.references.released == {"run-drawn", "run-u"}
    old.references.needed = []
    assert (await old.sweep(BODIES, apply=True)).number == 6


async def test_bodies_of_a_run_on_which_an_open_run_trained_stay(old: RetentionHarness) -> None:
    await old.settle(0, run="run-drawn", trained_by="run-t")
    old.references.needed = [Reference("run-t", "run is not over")]
    assert (await old.sweep(BODIES, apply=True)).kept == {"run is not over": 1}


async def test_a_removed_body_is_a_typed_error_that_names_age_and_policy(old: RetentionHarness) -> None:
    await old.settle(0, 1)
    await old.sweep(BODIES, apply=True)
    read = ReadBody(old.index, TrajectoryBodies(old.bodies), confirm_after_s=0)
    get = GetTrajectory(old.index, read)
    with pytest.raises(BodyRemoved, match="removed by retention on 2027-02-18 12:00 UTC: older than 30 days"):
        await get(events.episode_id(0, "run-e"))
    export = ExportTrajectories(old.index, read, page_size=10, parallel_reads=2)
    chunks = [chunk async for chunk in export(TrajectoryFilter(run_id="run-e"))]
    assert [(len(one.trajectories), one.quarantined, one.removed) for one in chunks] == [(0, 0, 2)]


async def test_a_reader_that_is_overtaken_by_retention_quarantines_nothing(old: RetentionHarness) -> None:
    await old.settle(0)
    stale = await old.index.find_episode(events.episode_id(0, "run-e"))
    assert stale is not None
    await old.sweep(BODIES, apply=True)
    with pytest.raises(BodyRemoved):
        await ReadBody(old.index, TrajectoryBodies(old.bodies), confirm_after_s=0)(stale)
    await old.index.quarantine(stale, "gone")
    row = await old.index.find_episode(events.episode_id(0, "run-e"))
    assert row is not None
    assert row.quarantine == ""


async def test_rows_go_after_their_bodies_and_the_equation_stays(both: RetentionHarness) -> None:
    old = both
    await old.settle(*range(8))
    await old.index.project(facts(events.requested(8, run="run-e"), events.failed(8, run="run-e")))
    before = await old.index.ledger("run-e", 10)
    assert before.by_label == {"evaluated": 8, "failed(timeout)": 1}
    assert (await old.sweep(EPISODES, apply=True)).number == 1, "only the episode without a body"
    await old.sweep(BODIES, apply=True)
    report = await old.sweep(EPISODES, apply=True)
    assert (report.number, report.policy) == (8, "older than 60 days")
    assert await old.num_rows() == 0
    assert await old.index.ledger("run-e", 10) == before
    get = GetTrajectory(old.index, ReadBody(old.index, TrajectoryBodies(old.bodies)))
    with pytest.raises(TrajectoryRemoved, match="older than 60 days; the counts of the run are kept"):
        await get(events.episode_id(0, "run-e"))


async def test_late_facts_about_removed_rows_add_no_row_and_count_nothing(old: RetentionHarness) -> None:
    await old.settle(*range(4), trained_by="run-t")
    await old.settle(*range(4, 8))
    before = await old.index.ledger("", 10)
    for what in Removable:
        await old.sweep(what, apply=True)
    again = [message for number in range(8) for message in old.life_of(number)]
    again += [
        events.stepped(range(4), 3, run="run-e", by="run-t"),
        events.failed(9, run="run-e"),
        events.settled(range(4), "trained", step=3, run="run-e", by="run-t"),
    ]
    for message in again:
        assert await old.index.project(facts(message)) == 0
    await old.index.project(facts(*again))
    assert await old.num_rows() == 0
    assert await old.index.ledger("", 10) == before
    await old.settle(0, run="run-new")
    assert (await old.index.ledger("run-new", 0)).requested == 1


async def test_a_row_that_a_step_alone_made_is_remembered_by_its_own_run(old: RetentionHarness) -> None:
    """The ledger never read what the evaluation said of the episode, until the row is gone."""
    await old.index.project(facts(events.stepped([0], 3, run="run-e", by="run-t")))
    before = await old.index.ledger("", 0)
    assert (await old.sweep(EPISODES, apply=True)).number == 1
    assert await old.index.project(facts(*old.life_of(0))) == 0
    assert await old.index.ledger("", 0) == before
    await old.index.project(facts(events.requested(0, run="run-t")))
    assert (await old.index.ledger("run-t", 0)).requested == 2


async def test_a_late_fact_about_a_removed_body_does_not_bring_it_back(old: RetentionHarness) -> None:
    await old.settle(0)
    await old.sweep(BODIES, apply=True)
    await old.index.project(facts(*old.life_of(0), events.settled([0], "trained", run="run-e", by="run-t")))
    row = await old.index.find_episode(events.episode_id(0, "run-e"))
    assert row is not None
    assert (row.body_removed_why, row.body_deleted, row.trained_by_run) == (
        "older than 30 days",
        True,
        "run-t",
    )


async def test_every_batch_is_bounded_and_kept_ones_do_not_stop_the_rest(old: RetentionHarness) -> None:
    await old.settle(*range(4), run="run-gate")
    await old.settle(*range(4, 9))
    old.references.needed, old.batch = [Reference("run-gate", "evidence of a gate")], 2
    reports = [await old.sweep(BODIES, apply=True)]
    while reports[-1].next:
        reports.append(await old.sweep(BODIES, apply=True, after=reports[-1].next))
    assert [(one.number, sum(one.kept.values())) for one in reports] == [
        (0, 2),
        (0, 2),
        (2, 0),
        (2, 0),
        (1, 0),
    ]


HOSTILE = ("x", "[]", "[1, 2]", "{}", '[1e400, 0, "x"]', "[1, 99999999999999999999, 1]", "[" * 9999, "null")


@pytest.mark.parametrize("after", HOSTILE)
async def test_a_key_that_is_not_ours_is_refused(old: RetentionHarness, after: str) -> None:
    await old.settle(0)
    with pytest.raises(InvalidRequest, match=r"after .* is not one of ours"):
        await old.sweep(BODIES, apply=True, after=after)
    assert len(old.memory.objects) == 1


async def test_a_made_up_key_makes_nothing_old(old: RetentionHarness) -> None:
    await old.settle(0)
    old.now = START + timedelta(days=29)
    assert (await old.sweep(BODIES, apply=True, after='[4000000000000000000, -1, ""]')).number == 0


async def test_the_oldest_beyond_a_size_go_and_none_that_is_younger_than_a_day(old: RetentionHarness) -> None:
    await old.settle(*range(5))  # 50 bytes
    old.policy = StorePolicy(bodies_bytes=25)
    old.now = START + timedelta(hours=2)
    assert (await old.sweep(BODIES, apply=True)).number == 0
    old.now = START + timedelta(days=2)
    report = await old.sweep(BODIES, apply=True)
    assert (report.policy, report.number, report.size_bytes) == ("oldest beyond 25 bytes of bodies", 3, 30)
    assert sorted(old.memory.objects) == sorted(
        key for key in old.memory.objects if "e003" in key or "g00001" in key
    ), "the two newest, 20 bytes"
    assert (await old.sweep(BODIES, apply=True)).number == 0
    old.policy = replace(old.policy, bodies=timedelta(days=1))
    assert (await old.sweep(BODIES, apply=True)).number == 2


async def test_the_bytes_of_bodies_are_added_up_in_pieces_and_no_further_than_needed(
    old: RetentionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement over all bodies meets its limit of 30 s when the store is large, and fails for good."""
    await old.settle(*range(7))  # 70 bytes
    sizes: list[int] = []

    def note(result: Any) -> Any:
        sizes.append(len(result))
        return result

    run = old.db.run
    monkeypatch.setattr(old.db, "run", lambda work: run(lambda sql: note(work(sql))))
    monkeypatch.setattr("trajectory_store.adapters.sql_retention._PIECE", 2)
    assert await old.rows.beyond_bytes(70) == 0
    assert sizes == [2, 2, 2, 1]
    sizes.clear()
    beyond = await old.rows.beyond_bytes(35)
    assert sizes == [2, 2]
    before = [
        await old.rows.old_rows(BODIES, moment, (-1, ""), 10, settled_before_us=1 << 62)
        for moment in (beyond - 1, beyond)
    ]
    assert list(map(len, before)) == [3, 4], "the three newest are 30 bytes"


class Killed(BaseException):
    """The process ends here."""


class KillAt:
    """Ends the process at its n-th moment: before and after each call that it watches there is one."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    def around(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def watched(*args: object) -> object:
            self._pass()
            result = await call(*args)
            self._pass()
            return result

        return watched


STEPS = ("remove_bodies", "bodies_going", "bodies_gone", "remove_episodes")


@pytest.mark.parametrize("what", list(Removable))
async def test_a_kill_at_every_step_leaves_nothing_dangling(
    both: RetentionHarness, what: Removable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after each statement and each deletion: a body is there, or its row says that it went."""
    old = both
    old.batch, moment = 2, 0
    while moment < 100:
        moment, run = moment + 1, f"run-{moment}"
        await old.settle(*range(3), run=run)
        if what is EPISODES:
            await old.sweep_all(BODIES)
        ledger, kill = await old.index.ledger("", 10), KillAt(moment)
        with monkeypatch.context() as patched:
            for owner, names in ((old.rows, STEPS), (old.memory, ("delete",))):
                for name in names:
                    patched.setattr(owner, name, kill.around(getattr(owner, name)))
            with suppress(Killed, Escaped):
                await old.sweep_all(what)
        for number in range(3):
            row = await old.index.find_episode(events.episode_id(number, run))
            if what is BODIES:
                assert row is not None
                assert row.record is not None
                is_there = row.record.body.key in old.memory.objects
                assert is_there or row.body_removed_us is not None
                assert not (is_there and row.body_deleted)
        assert await old.index.ledger("", 10) == ledger
        await old.sweep_all(what)
        assert old.memory.objects == {}
        assert await old.rows.bodies_going(10) == {}
        assert await old.num_rows() == (3 * moment if what is BODIES else 0)
        if kill.left > 0:
            break
    assert (4 if what is EPISODES else 15) < moment < 100


async def test_two_replicas_at_once_remove_each_thing_once(sql_url: str) -> None:
    databases = [MigratedDatabase(sql_url, "trajectory_store") for _ in range(2)]
    for database in databases:
        await database.start()
    one, other = map(RetentionHarness, databases)
    other.memory, other.bodies = one.memory, one.memory
    try:
        await one.settle(*range(40))
        before = await one.index.ledger("", 0)
        for harness in (one, other):
            harness.batch = 5
        for what in Removable:
            facts_meanwhile = [message for number in range(40) for message in one.life_of(number)]
            removed = await asyncio.gather(
                one.sweep_all(what), other.sweep_all(what), other.index.project(facts(*facts_meanwhile))
            )
            assert removed[0] + removed[1] == 40
        assert await one.num_rows() == 0
        assert one.memory.objects == {}
        assert await one.index.ledger("", 0) == before
        assert await one.index.removal_of(events.episode_id(0, "run-e")) is not None
    finally:
        for database in databases:
            await database.stop()


def _all_rows(query: TextClause, connection: Connection) -> list[object]:
    return list(connection.execute(query))


async def test_a_sweep_reads_no_row_that_cannot_go(old: RetentionHarness, sqlite_db: Database) -> None:
    """The partial indexes serve the three questions, so that a sweep costs what is old, not what is there."""
    for condition, wanted in (
        ("settled AND body_key IS NOT NULL AND body_removed_us IS NULL", "ix_episodes_bodies"),
        ("settled AND (body_key IS NULL OR body_deleted)", "ix_episodes_without_body"),
    ):
        at = "recorded_us" if "IS NOT NULL" in condition else "since_us"
        query = f"SELECT * FROM episodes WHERE {condition} AND {at} < 5 ORDER BY {at}, episode_id LIMIT 9"  # noqa: S608
        explained = text(f"EXPLAIN QUERY PLAN {query}")
        plan = await sqlite_db.run(partial(_all_rows, explained))
        assert wanted in str(plan)
        assert "TEMP B-TREE" not in str(plan)
