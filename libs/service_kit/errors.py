"""Errors that several libraries of the platform raise and that services react to in one way."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from upcycle.errors import Unavailable, UpcycleError


class InvalidRequest(ValueError):
    """A request can never succeed as it is; the message names field, value and limit. INVALID_ARGUMENT."""


class StoreFull(Unavailable):
    """A database, the object store or a local disk takes no more bytes. Nothing was written; make room."""

    kind = "store_full"


class SqlPasswordRefused(UpcycleError):
    """A file with the password of a database cannot be used."""

    kind = "sql_password_refused"


class Escaped(Exception):
    """SystemExit, or a CancelledError in a task that was not cancelled; the text names it."""


@contextmanager
def as_errors() -> Iterator[None]:
    """Let `except Exception` see what the body raises: Escaped, and Unavailable for a group of it alone."""
    try:
        yield
    except (SystemExit, asyncio.CancelledError, BaseExceptionGroup) as error:
        task, leaf = asyncio.current_task(), cast("BaseException", error)
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        if isinstance(error, BaseExceptionGroup) and error.split(Unavailable)[1] is None:
            raise leaf from error
        is_asked_for = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling()
        if is_asked_for or isinstance(error, Exception):
            raise
        raise Escaped(repr(error)) from error
