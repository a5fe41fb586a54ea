"""From what a driver raises to what a caller can react to."""

import sqlite3
from typing import Final

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from event_bus.errors import PoisonMessage
from service_kit.errors import StoreFull
from upcycle.errors import Unavailable

_SQLITE_UNAVAILABLE: Final = frozenset(
    getattr(sqlite3, f"SQLITE_{why}")
    for why in ("BUSY", "LOCKED", "READONLY", "IOERR", "CORRUPT", "CANTOPEN", "NOTADB", "PERM")
)
_PRIMARY_CODE: Final = 0xFF
_POSTGRES_FULL: Final = frozenset({"53100", "53200"})  # disk_full, out_of_memory
# serialization_failure, deadlock_detected, idle_in_transaction_session_timeout (before the commit)
_POSTGRES_AGAIN: Final = frozenset({"40001", "40P01", "25P03"})
_POSTGRES_DENIED: Final = "42501"
"""insufficient_privilege: somebody took a right away, or never gave it."""
# Whole classes; of others lock_not_available, and read_only_sql_transaction (this server is a replica now)
_POSTGRES_LOST: Final = ("08", "53", "57", "58", "28", "3D", "55P03", "25006", "25P03")
_POSTGRES_UNAVAILABLE: Final = (*_POSTGRES_LOST, _POSTGRES_DENIED)


def is_transient(error: DBAPIError) -> bool:
    """Whether the same transaction, run again now, is expected to succeed."""
    return _sqlstate(error) in _POSTGRES_AGAIN


def is_denied(error: Exception) -> bool:
    """Whether the login lacks a right for it (Postgres)."""
    return isinstance(error, DBAPIError) and _sqlstate(error) == _POSTGRES_DENIED


def is_silence(error: DBAPIError) -> bool:
    """Whether the server answered nothing at all."""
    return type(error.orig).__name__ in ("ServerSilent", "ConnectionTimeout")


def translated(error: DBAPIError, where: str) -> Exception:
    """The typed error for a driver's; a conflict or a wrong statement stays what it is."""
    if isinstance(error, IntegrityError):
        return error
    if isinstance(error, DataError):
        return refusal(where, error.orig)
    cause = _words(error.orig)
    if _sqlite_code(error) == sqlite3.SQLITE_FULL or _sqlstate(error) in _POSTGRES_FULL:
        return StoreFull(f"database {where} is full ({cause}): nothing was written, make room and try again")
    if _is_unavailable(error):
        return Unavailable(f"database {where} cannot be used now ({cause}): nothing was written")
    return error


def refusal(where: str, cause: BaseException | None) -> PoisonMessage:
    """The typed error for a value that the database will never take."""
    return PoisonMessage(f"database {where} refuses a value ({_words(cause)}): nothing was written")


def _words(cause: BaseException | None) -> str:
    return f"{type(cause).__name__}: {str(cause).strip()}"


def _is_unavailable(error: DBAPIError) -> bool:
    if _sqlite_code(error) in _SQLITE_UNAVAILABLE or error.connection_invalidated:
        return True
    state = _sqlstate(error)
    if state is None:
        # psycopg knows no code when there was no server to give one.
        return (
            type(error.orig).__module__.startswith("psycopg") and type(error).__name__ == "OperationalError"
        )
    return state.startswith(_POSTGRES_UNAVAILABLE)


def _sqlite_code(error: DBAPIError) -> int | None:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return None if code is None else int(code) & _PRIMARY_CODE


def _sqlstate(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    return None if state is None else str(state)
