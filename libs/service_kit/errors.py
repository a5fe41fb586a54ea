"""Errors that several libraries of the platform raise and that services react to in one way."""

from upcycle.errors import Unavailable


class StoreFull(Unavailable):
    """A database or the object store answers, but takes no more bytes. Nothing was written; make room."""

    kind = "store_full"
