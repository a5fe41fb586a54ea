"""The databases and the object store of a history. What was committed outlives every process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from sqlalchemy import Connection
from tests.simulation.network import SimulatedNetwork
from tests.simulation.statements import SimulatedConnection

from blob_store import BlobRef, MemoryBlobStore
from sql_store import Database, migrate
from sql_store.database import _NOTICES
from upcycle.errors import Unavailable

T = TypeVar("T")
SQL: Final = "sql"
S3: Final = "s3"
_ANSWER_S: Final = 5.0


class SimulatedDatabase(Database):
    """A service's tables in memory. A transaction runs in one piece, but the call that asked for it may be
    delayed or lost before it, or after it has committed: as with Postgres."""

    def __init__(self, service: str) -> None:
        super().__init__("sqlite://")
        self._service = service
        self._network: SimulatedNetwork | None = None
        self._empty = b""
        self._on_commit: Callable[[], None] = _nothing

    def prepare(self) -> None:
        """Make the tables; once per process, because migrations are slow."""
        asyncio.run(self._migrated())
        with self._engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
        self._open = SimulatedConnection(raw, self._engine.dialect)
        self._empty = raw.serialize()

    def begin_history(self, network: SimulatedNetwork, on_commit: Callable[[], None]) -> None:
        """Empty tables. on_commit: called after each transaction."""
        self._network, self._on_commit = network, on_commit
        self._listeners.clear()
        self._open.raw.deserialize(self._empty)

    async def run(self, fn: Callable[[Connection], T]) -> T:
        """See Database.run."""
        if self._network is None:
            return self._with_retries(fn)
        return await self._network.request(
            f"{SQL}/{self._service}",
            lambda: self._committed(fn),
            timeout_s=_ANSWER_S,
            lost=lambda: Unavailable(f"the database of {self._service} did not answer"),
        )

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What is committed, read from outside of the history."""
        return self._open.raw.execute(statement).fetchall()

    def _transact(self, fn: Callable[[Connection], T]) -> T:
        """As the real one, over one connection that stays open."""
        if self._network is None:
            return super()._transact(fn)
        notices: set[str] = set()
        connection: Any = self._open
        connection.info[_NOTICES] = notices
        connection.raw.execute("BEGIN")
        try:
            result = fn(connection)
        except BaseException:
            connection.raw.execute("ROLLBACK")
            raise
        connection.raw.execute("COMMIT")
        for topic in notices:
            for listener in self._listeners.get(topic, ()):
                listener()
        return result

    def _committed(self, fn: Callable[[Connection], T]) -> T:
        before = self._open.raw.total_changes
        result = self._with_retries(fn)
        if self._open.raw.total_changes != before:
            self._on_commit()
        return result

    async def _migrated(self) -> None:
        await migrate(self, self._service)


def _nothing() -> None:
    """Nobody looks."""


class SimulatedBlobs(MemoryBlobStore):
    """One object store behind the network."""

    def __init__(self, network: SimulatedNetwork, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self._network = network

    async def put(self, key: str, data: bytes) -> BlobRef:
        return await self._asked(super().put(key, data))

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        return await self._asked(super().put_if_absent(key, data))

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
