"""One process of several holds what is named, as long as its beat goes on.

A holder that cannot do its work beats no more. Clocks of machines are not compared: who sees the beat in the
table stand still for long enough, by its own clock, takes over. A holder that was frozen, or cut off
from the database, does not know it was replaced; what it must not do any more is refused by `check`, in the
transaction that would do it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from service_kit.loops import until_stopped
from sql_store.database import Database, take_turn
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_BEAT_S: Final = 1.0
_GIVEN_UP_S: Final = 3.0
_TAKEN_S: Final = 8.0
"""A holder that has given up may wait for the answer to its last request for messages, 3 s."""


def sole_holder_table(metadata: sa.MetaData) -> sa.Table:
    """The table, as one of `metadata`; a migration of the service creates it."""
    return sa.Table(
        "sole_holder",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False, comment="empty: free"),
        sa.Column("beat", sa.BigInteger, nullable=False),
    )


_TABLE: Final = sole_holder_table(sa.MetaData())


@dataclass(frozen=True, slots=True)
class _Beat:
    holder: str
    number: int


class SoleHolder:
    """What one process knows of who holds `name`."""

    def __init__(
        self,
        database: Database,
        name: str,
        holder: str,
        *,
        is_alone: bool = False,
        unable: Callable[[], str | None] = lambda: None,
        given_up_s: float = _GIVEN_UP_S,
        taken_s: float = _TAKEN_S,
    ) -> None:
        """holder: a name that no other process has. is_alone: no other process opens the database, so nothing
        is written about who holds it. unable: why this process could not do what the holder does, such as a
        bus that it does not reach; its beat stands still then, after `given_up_s`, and it takes nothing over.
        given_up_s: how long a holder takes itself for one after its last beat began; taken_s: how long others
        watch a beat that stands still before they take over."""
        self._database = database
        self._name = name
        self._holder = holder
        self._is_alone = is_alone
        self._unable = unable
        self._unable_since: float | None = None
        self._given_up_s = given_up_s
        self._taken_s = taken_s
        self._ours_until = 0.0
        self._seen: tuple[_Beat, float] | None = None

    def is_ours(self) -> bool:
        """Whether this process holds it, as far as it knows."""
        return self._is_alone or asyncio.get_running_loop().time() < self._ours_until

    async def run(self, stop: asyncio.Event) -> None:
        """Beat, or watch the holder's beat, until stopped; then let go."""
        if self._is_alone:
            await stop.wait()
            return
        await until_stopped(stop, self.beat, every_s=_BEAT_S, waiting="sole_holder_waits")
        self._ours_until = 0.0
        await self._database.run(self._let_go)

    async def beat(self) -> None:
        """Beat where this process is the holder; take over where the holder's beat stands still. Raises
        Unavailable."""
        began_s = asyncio.get_running_loop().time()
        if self._stands_back(began_s):
            return
        seen = self._seen
        gone = seen[0] if seen is not None and began_s - seen[1] > self._taken_s else None
        found = await self._database.note(lambda connection: self._beaten(connection, gone))
        if found.holder == self._holder:
            if not self._ours_until:
                _LOG.info("sole_holder", extra={"held": self._name, "holder": self._holder})
            self._ours_until, self._seen = began_s + self._given_up_s, None
        elif seen is None or seen[0] != found:
            self._ours_until, self._seen = 0.0, (found, began_s)

    def _stands_back(self, now_s: float) -> bool:
        """Whether this process is unable, and so neither holds it for long nor takes it over."""
        why = self._unable()
        if why is None:
            self._unable_since = None
            return False
        if self._unable_since is None:
            self._unable_since = now_s
        if not self._ours_until:
            return True
        if now_s - self._unable_since <= self._given_up_s:
            return False
        self._ours_until = 0.0  # no beat: what it has in hand is over before another takes over
        _LOG.warning(
            "sole_holder_stands_back", extra={"held": self._name, "holder": self._holder, "why": why}
        )
        return True

    def check(self, connection: sa.Connection) -> None:
        """In a transaction: this process holds it, and does until that ends. Raises Unavailable."""
        if self._is_alone:
            return
        found = self._read(connection, until_it_ends=True)
        if found is None or found.holder != self._holder:
            self._ours_until = 0.0
            holder = "no process" if found is None or not found.holder else found.holder
            raise Unavailable(f"{self._name} belongs to {holder} now, not to {self._holder}")

    def _beaten(self, connection: sa.Connection, gone: _Beat | None) -> _Beat:
        """Who holds it after this transaction. gone: the beat of a holder that is not waited for."""
        take_turn(connection, f"sole holder of {self._name}")
        found = self._read(connection)
        ours = _Beat(self._holder, found.number + 1 if found is not None else 1)
        values = {"holder": ours.holder, "beat": ours.number}
        if found is None:
            connection.execute(sa.insert(_TABLE).values(name=self._name, **values))
            return ours
        if found.holder not in ("", self._holder) and found != gone:
            return found
        connection.execute(sa.update(_TABLE).where(_TABLE.c.name == self._name).values(**values))
        return ours

    def _let_go(self, connection: sa.Connection) -> None:
        mine = (_TABLE.c.name == self._name) & (_TABLE.c.holder == self._holder)
        connection.execute(sa.update(_TABLE).where(mine).values(holder=""))

    def _read(self, connection: sa.Connection, *, until_it_ends: bool = False) -> _Beat | None:
        query = sa.select(_TABLE.c.holder, _TABLE.c.beat).where(_TABLE.c.name == self._name)
        query = query.with_for_update(read=True) if until_it_ends else query
        row = connection.execute(query).one_or_none()
        return None if row is None else _Beat(row.holder, row.beat)
