"""The databases and the object store of a history. What was committed outlives every process."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine
from tests.simulation.network import SimulatedNetwork
from tests.simulation.statements import Found, Interrupted, SimulatedConnection
from tests.simulation.virtual_time import SimulatedProcess, VirtualLoop, running_process

from blob_store import BlobRef, MemoryBlobStore
from sql_store import Database, migrate
from sql_store.database import _NOTICES
from upcycle.errors import Unavailable

T = TypeVar("T")
SQL: Final = "sql"
S3: Final = "s3"
_ANSWER_S: Final = 5.0
_INTERRUPTED: Final = 0.3
"""How often another transaction may run between two statements."""
_BETWEEN_S: Final = 0.05


def turn(connection: Any, name: str) -> None:
    """Takes the place of sql_store.take_turn. There is one turn for all names, and who locks a row has it."""
    connection.take_turn()


class SimulatedDatabase(Database):
    """A service's tables in memory. The call that asked for a transaction may be delayed or lost before it,
    or after it has committed: as with Postgres.

    A transaction runs in one piece, as on SQLite. Where they interleave, as on Postgres, others run between
    the statements with which it reads, until it locks or writes something.
    """

    def __init__(self, service: str) -> None:
        super().__init__("sqlite://")
        self._service = service
        self._network: SimulatedNetwork | None = None
        self._empty = b""
        self._on_commit: Callable[[], None] = _nothing
        self._interleaved: VirtualLoop | None = None
        self._owned: dict[str, list[tuple[SimulatedProcess | None, Callable[[], None]]]] = {}

    def prepare(self, fill: Callable[["SimulatedDatabase"], Coroutine[Any, Any, None]]) -> None:
        """Make the tables, and what every history finds in them; once per process, because migrations are
        slow."""
        asyncio.run(self._migrated())
        asyncio.run(fill(self))
        with self._engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
        self._open = SimulatedConnection(raw, self._engine.dialect)
        self._empty = raw.serialize()

    def begin_history(
        self, network: SimulatedNetwork, on_commit: Callable[[], None], interleaved: VirtualLoop | None
    ) -> None:
        """Empty tables. on_commit: called after each transaction. interleaved: the loop in which transactions
        wait for others; None: each runs in one piece."""
        self._network, self._on_commit, self._interleaved = network, on_commit, interleaved
        self._owned.clear()
        self._open.raw.deserialize(self._empty)

    @property
    def is_shared(self) -> bool:
        """Whether several processes may open it, as on Postgres."""
        return self._interleaved is not None

    async def run(self, fn: Callable[[Connection], T]) -> T:
        """See Database.run."""
        return await self._asked(fn, self._interleaved)

    async def note(self, fn: Callable[[Connection], T]) -> T:
        """See Database.note. No machine loses its power here."""
        return await self.run(fn)

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """See Database.read: it sees one instant."""
        return await self._asked(fn, None)

    def listen(self, topic: str, listener: Callable[[], None]) -> None:
        """See Database.listen: a process hears of its own commits."""
        self._owned.setdefault(topic, []).append((running_process(), listener))

    async def _asked(self, fn: Callable[[Connection], T], interleaved: VirtualLoop | None) -> T:
        if self._network is None:
            return self._with_retries(fn, self._engine)
        return await self._network.conversation(
            f"{SQL}/{self._service}",
            self._transacted(fn, interleaved),
            timeout_s=_ANSWER_S,
            lost=lambda: Unavailable(f"the database of {self._service} did not answer"),
        )

    async def _transacted(self, fn: Callable[[Connection], T], loop: VirtualLoop | None) -> T:
        if loop is None:
            return self._committed(fn, None, _never)
        read: list[Found] = []
        while True:
            try:
                return self._committed(fn, read, lambda: loop.pause_s(1.0) < _INTERRUPTED)
            except Interrupted:
                await asyncio.sleep(loop.pause_s(_BETWEEN_S))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What is committed, read from outside of the history."""
        return self._open.raw.execute(statement).fetchall()

    def _transact(self, fn: Callable[[Connection], T], engine: Engine) -> T:
        """As the real one, over one connection that stays open."""
        if self._network is None:
            return super()._transact(fn, engine)
        notices: set[str] = set()
        connection: Any = self._open
        connection.info[_NOTICES] = notices
        connection.begin(*self._asking)
        try:
            result = fn(connection)
        except BaseException:
            connection.raw.execute("ROLLBACK")
            raise
        connection.raw.execute("COMMIT")
        process = running_process()
        for owner, listener in (one for topic in notices for one in self._owned.get(topic, ())):
            if process is None or owner is process:
                listener()
        return result

    def _committed(
        self, fn: Callable[[Connection], T], read: list[Found] | None, interrupts: Callable[[], bool]
    ) -> T:
        before = self._open.raw.total_changes
        self._asking = read, interrupts
        result = self._with_retries(fn, self._engine)
        if self._open.raw.total_changes != before:
            self._on_commit()
        return result

    async def _migrated(self) -> None:
        await migrate(self, self._service)


def _nothing() -> None:
    """It is not looked at."""


def _never() -> bool:
    return False


class SimulatedBlobs(MemoryBlobStore):
    """One object store behind the network."""

    def __init__(
        self, network: SimulatedNetwork, objects: dict[str, bytes], on_object: Callable[[str], None]
    ) -> None:
        """on_object: called with the key of each object that was stored."""
        super().__init__()
        self.objects = objects
        self._network = network
        self._on_object = on_object

    async def put(self, key: str, data: bytes) -> BlobRef:
        return await self._asked(self._stored(key, partial(super().put, key, data)))

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        return await self._asked(self._stored(key, partial(super().put_if_absent, key, data)))

    async def _stored(self, key: str, put: Callable[[], Coroutine[Any, Any, T]]) -> T:
        ref = await put()
        self._on_object(key)
        return ref

    async def read(self, key: str) -> bytes | None:
        return await self._asked(super().read(key))

    async def list(self, prefix: str) -> tuple[str, ...]:
        return await self._asked(super().list(prefix))

    async def delete(self, key: str) -> None:
        return await self._asked(super().delete(key))

    async def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._network.conversation(
            S3, work, timeout_s=_ANSWER_S, lost=lambda: Unavailable("the object store did not answer")
        )
