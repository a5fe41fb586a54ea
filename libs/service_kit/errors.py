"""Errors that several libraries of the platform raise and that services react to in one way."""

from upcycle.errors import Unavailable


class InvalidRequest(ValueError):
    """A request can never succeed as it is; the message names field, value and limit. INVALID_ARGUMENT."""


class StoreFull(Unavailable):
    """A database or the object store answers, but takes no more bytes. Nothing was written; make room."""

    kind = "store_full"
