"""Two replicas of a service publish from one outbox: neither undoes the other's batches."""

from collections.abc import Sequence

from sqlalchemy import Connection, update
from tests.libs.sql_store.support import OUTBOX, Remembering, eventually, opened
from tests.libs.sql_store.test_outbox import put, unpublished

from event_bus import Stored
from event_bus.errors import AlreadyDecided
from sql_store import Database, OutboxRelay


class BesideAnother(Remembering):
    """The other relay was first with these rows: the server knows their ids. It marks `marks` of them."""

    def __init__(self, db: Database, others: Sequence[str], marks: int) -> None:
        super().__init__()
        self._db, self._others, self._marks = db, others, marks

    async def publish_together(self, stored: Sequence[Stored], stream: str) -> None:
        if not {one.event_id for one in stored} & set(self._others):
            await super().publish_together(stored, stream)
            return
        marked = list(self._others[: self._marks])

        def mark(connection: Connection) -> None:
            wanted = OUTBOX.c.event_id.in_(marked)
            connection.execute(update(OUTBOX).where(wanted).values(published_at=OUTBOX.c.enqueued_at))

        await self._db.run(mark)
        raise AlreadyDecided("a known id")


async def relayed(sql_url: str, *, marks: int) -> tuple[BesideAnother, list[str]]:
    """150 rows, of which another relay published the first 100."""
    names = [f"{n:03}" for n in range(150)]
    async with opened(sql_url) as db, opened(sql_url) as other:
        bus = BesideAnother(other, names[:100], marks)
        await put(db, *names)
        relay = OutboxRelay(db, bus)
        await relay.start()
        await eventually(db, unpublished, list[str]())
        await relay.stop()
    return bus, names


async def test_a_batch_that_another_relay_published_is_not_published_row_by_row(sql_url: str) -> None:
    bus, names = await relayed(sql_url, marks=100)
    assert (bus.ids("fact"), bus.batches) == (names[100:], [50])


async def test_what_the_other_relay_did_not_mark_is_published_in_order(sql_url: str) -> None:
    """It was killed in between, say; the server drops the repeats."""
    bus, names = await relayed(sql_url, marks=60)
    assert bus.ids("fact") == names[60:]
