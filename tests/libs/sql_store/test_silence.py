"""A client of Postgres that falls silent in a transaction loses it; a server that falls silent is named."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection
from tests.libs.sql_store.support import opened, texts, write
from tests.postgres import PROGRAMS, PostgresServer
from tests.support.waiting import until

from sql_store import Database, take_turn
from upcycle.errors import Unavailable

pytestmark = pytest.mark.skipif(PROGRAMS is None, reason="no Postgres programs on this machine")


class Frozen:
    """A transaction that takes the turn, writes, and then says nothing until it is woken."""

    def __init__(self, text: str) -> None:
        self.holds, self.wakes = threading.Event(), threading.Event()
        self.tries = 0
        self._write = write(text)

    def __call__(self, connection: Connection) -> None:
        take_turn(connection, "plan")
        self._write(connection)
        self.tries += 1
        self.holds.set()
        assert self.wakes.wait(120)
        write(f"once more {self.tries}")(connection)


def with_turn(text: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        take_turn(connection, "plan")
        write(text)(connection)

    return work


async def test_another_process_gets_the_turn_of_one_that_is_frozen_and_the_frozen_one_counts_once(
    postgres_server: PostgresServer,
) -> None:
    url, frozen = postgres_server.database(), Frozen("frozen")
    async with opened(url) as db, opened(url) as other:
        holding = asyncio.create_task(db.run(frozen))
        await until(frozen.holds.is_set, "the frozen one to hold the turn")
        await in_the_end(other, with_turn("other"))
        frozen.wakes.set()
        await holding
        assert frozen.tries == 2
        assert await other.run(texts) == ["other", "frozen", "once more 2"]


async def in_the_end(db: Database, work: Callable[[Connection], None]) -> None:
    """Within a minute, on a machine that may pause."""

    async def done() -> bool:
        try:
            await db.run(work)
        except Unavailable:
            return False
        return True

    await until(done, "the turn", timeout_s=60)


async def test_a_server_that_falls_silent_in_a_transaction_is_named_until_it_answers(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sql_store.postgres._SILENT_SLICES", 20)
    stopped: list[int] = []

    def freeze_session(connection: Connection) -> None:
        stopped.append(int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()))
        os.kill(stopped[0], signal.SIGSTOP)
        write("a")(connection)

    async with opened(postgres_server.database()) as db:
        try:
            async with asyncio.timeout(60):
                with pytest.raises(Unavailable, match="answered nothing for 2 s"):
                    await db.run(freeze_session)
            assert "answered nothing for 2 s" in str(db.ready())
        finally:
            os.kill(stopped[0], signal.SIGCONT)
        await db.run(write("b"))
        assert db.ready() is None
        assert await db.run(texts) == ["b"]


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def test_a_server_of_which_every_process_is_silent_is_named(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sql_store.postgres._SILENT_SLICES", 20)
    pid = "SELECT pg_backend_pid()"
    async with opened(postgres_server.database()) as db:
        session = int(await db.run(lambda connection: connection.exec_driver_sql(pid).scalar_one()))
        server = parent_of(session)
        try:
            for process in (server, session):
                os.kill(process, signal.SIGSTOP)
            async with asyncio.timeout(90):
                with pytest.raises(Unavailable, match="timeout"):
                    await db.run(texts)
            assert "timeout" in str(db.ready())
        finally:
            for process in (server, session):
                os.kill(process, signal.SIGCONT)
        assert await db.run(texts) == []


async def test_who_waits_for_a_connection_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(f"sqlite:///{tmp_path / 'x.sqlite'}") as db:
        monkeypatch.setattr("sql_store.database._QUEUE_S", 0.0)
        with pytest.raises(Unavailable, match="no connection free for 0 s: nothing was written"):
            await db.run(write("a"))
        monkeypatch.undo()
        assert await db.run(texts) == []
