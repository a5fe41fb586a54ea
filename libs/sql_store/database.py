"""Database: one transaction at a time is a plain function of a SQLAlchemy connection, run off the event
loop.

SQLite (one process owns the file): one connection on one thread, WAL, synchronous=FULL, so that a commit
survives power loss. Postgres: a small pool, one thread per connection.
"""

import asyncio
import contextvars
import hashlib
import logging
import re
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import SecretStr
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import StaticPool

from sql_store.errors import UnsupportedDatabase
from sql_store.failures import is_silence, is_transient, refusal, translated
from sql_store.refusals import LastRefusal
from upcycle.errors import Unavailable

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_POSTGRES_CONNECTIONS: Final = 4
_BUSY_TIMEOUT_MS: Final = 10_000
_WAL_PAUSE_S: Final = 0.02
_QUEUE_S: Final = 60.0
"""How long a transaction waits for one of the connections."""
_SILENCE_REPORTED_S: Final = 60.0
_TRIED_AFTER_S: Final = 20.0
_MAX_TRIES: Final = 4
_NOTICES: Final = "sql_store.notices"
_NOTED: Final = "sql_store_noted"
_SYNCHRONOUS: Final = "sql_store.synchronous"
"""Of a SQLite connection, what `PRAGMA synchronous` says; FULL from the start."""
_UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
_NO_TEXTS: Final = frozenset({int, float, bool, bytes, datetime, type(None)})
"""Most values of a row; a call for each of them is a tenth of what a transaction takes."""


class Database:
    """One service's tables. Constructing it does no I/O."""

    name = "database"

    def __init__(self, url: str | SecretStr) -> None:
        self._url = _normalised(url.get_secret_value() if isinstance(url, SecretStr) else url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        workers = 1 if self._is_sqlite else _POSTGRES_CONNECTIONS
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="sql")
        self._engine = self._sqlite() if self._is_sqlite else self._postgres()
        event.listen(self._engine, "before_cursor_execute", _with_storable_texts, retval=True)
        self._noting = self._engine.execution_options(**{_NOTED: True})
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._stopped = False
        self._silence: tuple[float, str] | None = None
        self._refusal = LastRefusal(self._engine)
        self._tries_to_write: Callable[[Connection], object] | None = None
        """Writes what changes nothing; None: it is not known how."""
        self._tried_at = 0.0

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    @property
    def missing_file(self) -> str:
        """The SQLite file that `start` would make; empty where there is one, in memory and on Postgres."""
        file = self._url.database or ""
        return file if self._is_sqlite and not Path(file).exists() else ""

    async def start(self) -> None:
        """Open the database; makes the folder of a SQLite file. Raises Unavailable, StoreFull."""
        if self._is_sqlite and self._url.database:
            try:
                Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise Unavailable(f"cannot make the folder of {self._url.database}: {error}") from error
        await self.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one())

    async def stop(self) -> None:
        """Finish the transactions in flight and close every connection."""
        self._stopped = True
        await asyncio.to_thread(self._threads.shutdown, wait=True)
        await asyncio.to_thread(self._engine.dispose)

    def ready(self) -> str | None:
        """Open for transactions, the server answers them, and what it refused last it takes by now."""
        if self._stopped:
            return "closed"
        silence = self._silence
        if silence is not None and time.monotonic() < silence[0] + _SILENCE_REPORTED_S:
            return silence[1]
        if (refused := self._refusal.text) is None:
            return None
        self._try_to_write()
        lasts = "no write was taken since" if self._refusal.is_of_write else "nothing was taken since"
        return f"{refused} ({lasts})"

    def _try_to_write(self) -> None:
        """Ask whether it takes writes again, once nothing was refused for a while: a service that is not
        ready may be given nothing to write. One row may still fit where others do not."""
        now = time.monotonic()
        last = max(self._tried_at, self._refusal.at)
        if self._tries_to_write is not None and now >= last + _TRIED_AFTER_S:
            self._tried_at = now
            self._threads.submit(self._try_once, self._tries_to_write)

    def _try_once(self, fn: Callable[[Connection], object]) -> None:
        try:
            self._with_retries(fn, self._engine)
        except Exception as error:
            _LOG.info("database_still_refuses", extra={"error": str(error)})

    async def run(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn` in one transaction: it commits when `fn` returns and rolls back when it raises.

        `fn` must touch nothing but the connection: after a deadlock, or when the server took its turn away,
        it runs again. A caller that is cancelled does not know whether the transaction took place. Raises
        StoreFull, Unavailable, PoisonMessage for a value that the database will never take, and whatever
        `fn` raises.
        """
        return await self._in_thread(fn, self._engine)

    async def note(self, fn: Callable[[Connection], T]) -> T:
        """`run` whose commit does not wait for the disk, which is most of what a small one costs. No death of
        a process loses it; with the machine's power the last ones may be lost, until a commit of `run`.
        """
        return await self._in_thread(fn, self._noting)

    async def _in_thread(self, fn: Callable[[Connection], T], engine: Engine) -> T:
        if self._stopped:
            raise Unavailable(f"the database {self.shown} was closed")
        work = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, work.run, self._begun, fn, engine, time.monotonic()
        )

    async def read(self, fn: Callable[[Connection], T]) -> T:
        """Run `fn`, which only reads, in one transaction: all its statements see the same instant. On
        Postgres it waits for no writer, and a write is refused.
        """
        if self._is_sqlite:
            return await self.run(fn)

        def of_one_instant(connection: Connection) -> T:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return fn(connection)

        return await self.run(of_one_instant)

    def _begun(self, fn: Callable[[Connection], T], engine: Engine, asked_at: float) -> T:
        if (waited := time.monotonic() - asked_at) > _QUEUE_S:
            raise Unavailable(
                f"database {self.shown} had no connection free for {waited:.0f} s: nothing was written"
            )
        return self._with_retries(fn, engine)

    def _with_retries(self, fn: Callable[[Connection], T], engine: Engine) -> T:
        attempt = 1
        while True:
            try:
                result = self._transact(fn, engine)
                self._silence = None
                return result
            except DBAPIError as error:
                if is_silence(error):
                    self._silence = time.monotonic(), f"{self.shown}: {error.orig}"
                if attempt == _MAX_TRIES or not is_transient(error):
                    raise self._translated(error) from error
                _LOG.info("transaction_again", extra={"attempt": attempt, "error": repr(error.orig)})
            except OverflowError as error:  # of an integer beyond 64 bits; Postgres' driver raises DataError
                raise refusal(self.shown, error) from error
            attempt += 1

    def _translated(self, error: DBAPIError) -> Exception:
        known = translated(error, self.shown)
        if isinstance(known, Unavailable):
            self._refusal.refused(error, str(known))
        return known

    def _transact(self, fn: Callable[[Connection], T], engine: Engine) -> T:
        notices: set[str] = set()
        with engine.begin() as connection:
            connection.info[_NOTICES] = notices
            self._refusal.begins(connection)
            result = fn(connection)
            wrote = self._refusal.wrote(connection)
        self._refusal.committed(wrote=wrote)
        for listener in (one for topic in notices for one in self._listeners.get(topic, ())):
            listener()
        return result

    def listen(self, topic: str, listener: Callable[[], None]) -> None:
        """Call `listener`, on a worker thread, after each commit of a transaction that gave notice of
        `topic`.
        """
        self._listeners.setdefault(topic, []).append(listener)

    @property
    def shown(self) -> str:
        """The URL without its password, for messages."""
        return self._url.render_as_string(hide_password=True)

    def _sqlite(self) -> Engine:
        engine = create_engine(self._url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_immediate)
        return engine

    def _postgres(self) -> Engine:
        from sql_store import postgres  # its driver is an extra

        engine = create_engine(
            self._url,
            pool_size=_POSTGRES_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            pool_timeout=postgres.CONNECT_TIMEOUT_S,
            connect_args=postgres.connect_args(_BUSY_TIMEOUT_MS, self._url.query.get("options")),
        )
        event.listen(engine, "begin", _begin_on_postgres)
        event.listen(engine, "do_connect", postgres.connect)
        return engine


def give_notice(connection: Connection, topic: str) -> None:
    """Tell the listeners of `topic` once the running transaction of `Database.run` has committed."""
    notices: set[str] = connection.info[_NOTICES]
    notices.add(topic)


def take_turn(connection: Connection, name: str) -> None:
    """Until the running transaction ends, no other one, of any process, gets past its call with this name.

    Called first, it gives Postgres what SQLite has anyway: what was read is still true at the commit.
    """
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (number,))


def wait_for_ever(connection: Connection) -> None:
    """For one long transaction on Postgres, of a program that has the database for itself."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {name} = 0")
    opened: Any = connection.connection.driver_connection
    opened.may_run_long = True


def _normalised(url: str) -> URL:
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1))
    except ArgumentError as error:
        raise UnsupportedDatabase(
            "the database URL cannot be read: expected sqlite:///FILE or postgresql://..."
        ) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise UnsupportedDatabase(
        f"database {backend!r} is not supported: use sqlite:///FILE or postgresql://..."
    )


def _with_storable_texts(_c: object, _k: object, statement: str, values: Any, *_: object) -> tuple[str, Any]:
    return statement, _storable(values)


def _storable(value: Any) -> Any:
    """Without what Postgres refuses in a text: NUL and halves of characters."""
    if isinstance(value, str):
        is_plain = value.isascii() and "\0" not in value
        return value if is_plain else _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: one if type(one) in _NO_TEXTS else _storable(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)([one if type(one) in _NO_TEXTS else _storable(one) for one in value])
    return value


def _prepare_sqlite(connection: Any, record: object) -> None:
    # The driver must not begin transactions by itself: it begins them late, and outside our control.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    _use_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _use_wal(connection: sqlite3.Connection) -> None:
    # The first process changes the mode of a new file. Beside another transaction SQLite refuses that at
    # once, without waiting for busy_timeout.
    give_up_at = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
        time.sleep(_WAL_PAUSE_S)


def _begin_immediate(connection: Connection) -> None:
    wanted = "NORMAL" if connection.get_execution_options().get(_NOTED) else "FULL"
    if connection.info.get(_SYNCHRONOUS, "FULL") != wanted:
        connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")  # only between transactions
        connection.info[_SYNCHRONOUS] = wanted
    # Taking the write lock at the beginning, a read-then-write cannot fail half way.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_on_postgres(connection: Connection) -> None:
    if connection.get_execution_options().get(_NOTED):
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
