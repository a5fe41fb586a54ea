"""One process of several holds a name: on SQLite and on a real Postgres."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import Connection, MetaData
from tests.libs.sql_store.support import opened, texts, write
from tests.support.waiting import until

from sql_store import Database, SoleHolder, sole_holder_table
from upcycle.errors import Unavailable

NAME = "reading"


def hasty(db: Database, holder: str) -> SoleHolder:
    """It takes over at its second look at the same beat."""
    return SoleHolder(db, NAME, holder, given_up_s=30.0, taken_s=0.0)


@pytest.fixture
async def db(sql_url: str) -> AsyncIterator[Database]:
    metadata = MetaData()
    sole_holder_table(metadata)
    async with opened(sql_url) as db:
        await db.run(lambda connection: metadata.create_all(connection))
        yield db


async def test_the_first_holds_it_and_the_second_waits(db: Database) -> None:
    first, second = SoleHolder(db, NAME, "a"), SoleHolder(db, NAME, "b")
    assert not first.is_ours()
    for holder in (first, second, second, first, second):
        await holder.beat()
    assert first.is_ours()
    assert not second.is_ours()
    await db.run(first.check)
    with pytest.raises(Unavailable, match="reading belongs to a now, not to b"):
        await db.run(second.check)


async def test_a_holder_that_cannot_do_its_work_lets_go_and_takes_nothing_over(db: Database) -> None:
    why: list[str] = []
    first = SoleHolder(db, NAME, "a", unable=lambda: why[0] if why else None, given_up_s=0.0)
    second = hasty(db, "b")
    await first.beat()
    why.append("not connected to NATS")
    await first.beat()
    await until(lambda: asyncio.get_running_loop().time() > (first._unable_since or 0.0))
    await first.beat()
    assert not first.is_ours()
    await second.beat()
    await first.beat()
    await second.beat()
    assert second.is_ours(), "the beat stood still"
    why.clear()
    await first.beat()
    assert not first.is_ours()
    assert second.is_ours()


async def test_one_that_is_unable_for_a_moment_goes_on(db: Database) -> None:
    why = ["not connected to NATS"]
    first = SoleHolder(db, NAME, "a", unable=lambda: why[0] if why else None)
    await first.beat()
    assert not first.is_ours(), "it was unable from the start"
    why.clear()
    await first.beat()
    why.append("not connected to NATS")
    await first.beat()
    assert first.is_ours()


async def test_names_are_held_apart(db: Database) -> None:
    one, other = SoleHolder(db, "one", "a"), SoleHolder(db, "other", "b")
    await one.beat()
    await other.beat()
    assert one.is_ours()
    assert other.is_ours()


async def test_a_beat_that_stands_still_is_taken_over_and_its_holder_may_do_nothing(db: Database) -> None:
    frozen, second = hasty(db, "a"), hasty(db, "b")
    await frozen.beat()
    await second.beat()
    await second.beat()
    assert second.is_ours()
    assert frozen.is_ours(), "it does not know"

    def work(connection: Connection) -> None:
        frozen.check(connection)
        write("of the frozen one")(connection)

    with pytest.raises(Unavailable, match="reading belongs to b now, not to a"):
        await db.run(work)
    assert await db.read(texts) == []
    assert not frozen.is_ours(), "it knows now"


async def test_a_beat_that_goes_on_is_never_taken_over(db: Database) -> None:
    first, second = hasty(db, "a"), hasty(db, "b")
    for _ in range(5):
        await first.beat()
        await second.beat()
    assert first.is_ours()
    assert not second.is_ours()


async def test_a_holder_that_cannot_beat_gives_up_by_itself(db: Database) -> None:
    holder = SoleHolder(db, NAME, "a", given_up_s=0.3)
    await holder.beat()
    await until(lambda: not holder.is_ours())


async def test_a_holder_that_is_stopped_lets_go(db: Database) -> None:
    first, second, stop = SoleHolder(db, NAME, "a"), SoleHolder(db, NAME, "b"), asyncio.Event()
    running = asyncio.create_task(first.run(stop))
    await until(first.is_ours)
    await second.beat()
    assert not second.is_ours()
    stop.set()
    await running
    assert not first.is_ours()
    await second.beat()
    assert second.is_ours()
    with pytest.raises(Unavailable):
        await db.run(first.check)


async def test_of_many_that_begin_together_one_holds_it(db: Database) -> None:
    holders = [SoleHolder(db, NAME, f"holder-{number}") for number in range(8)]
    await asyncio.gather(*(one.beat() for one in holders))
    assert sum(one.is_ours() for one in holders) == 1


async def test_the_only_process_holds_it_without_a_table(sql_url: str) -> None:
    async with opened(sql_url) as db:
        alone = SoleHolder(db, NAME, "a", is_alone=True)
        assert alone.is_ours()
        await db.run(alone.check)
        stop = asyncio.Event()
        stop.set()
        await alone.run(stop)
        assert alone.is_ours()
