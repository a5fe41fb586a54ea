"""What a database refused last, until it takes the like of it again: a full disk can still be read.

Not of interest is what the caller is to blame for: a conflict, a value, a wrong statement.
"""

import re
import time
from typing import Any, Final

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

_WRITES: Final = re.compile(
    r"\s*(?:INSERT|UPDATE|DELETE|CREATE|ALTER|DROP)\b|"
    r"\s*WITH\b.*\b(?:INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\S+\s+SET)\b",
    re.IGNORECASE | re.DOTALL,
)
_WROTE: Final = "sql_store.wrote"


class LastRefusal:
    """Of one database; its transactions run on several threads."""

    def __init__(self, engine: Engine) -> None:
        self._text: str | None = None
        self._is_of_write = False
        self.at = 0.0
        """When it was, by the monotonic clock."""
        event.listen(engine, "after_cursor_execute", self._after_statement)

    @property
    def text(self) -> str | None:
        """None where it takes everything, as far as is known."""
        return self._text

    @property
    def is_of_write(self) -> bool:
        """Whether a write was refused: then it may well be read."""
        return self._is_of_write

    def refused(self, error: DBAPIError, text: str) -> None:
        """A transaction failed with this error, and the caller is told `text`."""
        # A commit has no statement; one that cannot begin, as in a file that may only be read, says so.
        statement = "INSERT" if error.statement is None else error.statement
        self._is_of_write = _WRITES.match(statement) is not None
        self._text, self.at = text, time.monotonic()

    @staticmethod
    def begins(connection: Connection) -> None:
        """A transaction begins; connections are used again."""
        connection.info.pop(_WROTE, None)

    def committed(self, *, wrote: bool) -> None:
        """A transaction took place."""
        if wrote or not self._is_of_write:
            self._text = None

    @staticmethod
    def wrote(connection: Connection) -> bool:
        """Whether its transaction changed rows while a refusal stood."""
        return bool(connection.info.get(_WROTE))

    def _after_statement(self, connection: Connection, cursor: Any, statement: str, *_: object) -> None:
        if self._text is not None and cursor.rowcount and _WRITES.match(statement):
            connection.info[_WROTE] = True
