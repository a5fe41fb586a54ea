"""How long a Postgres server and a client of it wait for each other, so that no silence lasts for ever.

The server ends the session of a client that begins a transaction and then says nothing: a process that is
frozen, or whose host is gone, would hold its locks for as long. A client closes the connection to a server
that answers nothing: the server's own limits do not help when the server is frozen or gone.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 10
_STATEMENT_MS: Final = 30_000
_IDLE_MS: Final = 8_000
"""Less than anybody waits for a lock: who waits for the turn of a frozen process still gets it."""
_SILENT_SLICES: Final = 350
_SLICE_S: Final = 0.1
"""Together a little more than the server lets a statement run. Slices are counted, so that the seconds in
which this process itself was frozen are not held against the server."""
_GONE_MS: Final = 15_000
_GONE: Final = {"idle": 5, "interval": 3, "count": 3}
"""When a host counts as gone: nothing came for so long, and so many questions were not answered."""


def connect_args(lock_timeout_ms: int, given: object) -> dict[str, Any]:
    """What each connection is opened with.

    given: options of the URL, which are stronger.
    """
    limits = {
        "statement_timeout": _STATEMENT_MS,
        "lock_timeout": lock_timeout_ms,
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "tcp_user_timeout": _GONE_MS,
        **{f"tcp_keepalives_{name}": value for name, value in _GONE.items()},
    }
    options = " ".join(f"-c {name}={value}" for name, value in limits.items())
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": f"{options} {given}" if isinstance(given, str) else options,
        "tcp_user_timeout": _GONE_MS,
        **{f"keepalives_{name}": value for name, value in _GONE.items()},
    }


class ImpatientConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server answers nothing for longer than it lets a statement run."""

    may_run_long = False
    """In a transaction without a statement timeout."""

    def wait(self, gen: PQGen[T], interval: float = _SLICE_S, *args: Any, **options: Any) -> T:
        """See psycopg.Connection. Raises OperationalError."""
        if self.may_run_long:
            return super().wait(gen, interval, *args, **options)
        try:
            return super().wait(_until_silent(gen), interval, *args, **options)
        except ServerSilent:
            self.close()
            raise


def connect(dialect: object, record: object, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """For SQLAlchemy, which would make a psycopg.Connection."""
    return ImpatientConnection.connect(*args, **options)


class ServerSilent(psycopg.OperationalError):
    """The server answered nothing for longer than it lets a statement run."""


def _until_silent(gen: PQGen[T]) -> Generator[Any, Any, T]:
    empty = 0
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            empty = 0 if ready else empty + 1
            if empty > _SILENT_SLICES:
                raise ServerSilent(f"the server answered nothing for {_SILENT_SLICES * _SLICE_S:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
