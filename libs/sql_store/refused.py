"""Rows of the outbox that the bus refused: they stay unpublished, are named, and are tried again.

Nothing that a service stored is dropped. What refuses a row is mended elsewhere (a limit of a stream, a
version that lacks a type); then the next try publishes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, func, select, update

from service_kit.component import ALARM
from sql_store.outbox import OUTBOX
from upcycle.wording import amount

TRY_AGAIN_S: Final = 60.0
_REFUSED: Final = (OUTBOX.c.published_at.is_(None), OUTBOX.c.refusal.is_not(None))
_FIRST: Final = select(OUTBOX.c.event_id, OUTBOX.c.refusal).where(*_REFUSED).order_by(OUTBOX.c.id).limit(1)
_IDS: Final = select(OUTBOX.c.id).where(*_REFUSED).order_by(OUTBOX.c.id)
_SET_ASIDE: Final = (
    update(OUTBOX).where(OUTBOX.c.id == bindparam("row_id")).values(refusal=bindparam("reason"))
)
_TAKEN: Final = update(OUTBOX).where(OUTBOX.c.id == bindparam("row_id")).values(refusal=None)


@dataclass(frozen=True, slots=True)
class Refused:
    """What the bus refuses at present."""

    number: int = 0
    first: str = ""
    reason: str = ""

    def alarm(self) -> str | None:
        """For `ready`; None when nothing is refused."""
        if not self.number:
            return None
        rows = amount(self.number, "stored message")
        return (
            f"{ALARM}the bus refuses {rows}, the first is {self.first} ({self.reason}); "
            f"tried again every {TRY_AGAIN_S:g} s: mend the cause"
        )


def read_refused(connection: Connection) -> Refused:
    """The refused rows, by the index of unpublished ones."""
    number = connection.execute(select(func.count()).select_from(OUTBOX).where(*_REFUSED)).scalar_one()
    first = connection.execute(_FIRST).one_or_none()
    return Refused(number, *first) if first is not None else Refused()


def refused_ids(connection: Connection) -> Sequence[int]:
    """Ids of the refused rows, in the order in which they were stored."""
    return connection.execute(_IDS).scalars().all()


def set_aside(connection: Connection, row_id: int, reason: str) -> None:
    """The bus refused the row: the others go on without it."""
    connection.execute(_SET_ASIDE, {"row_id": row_id, "reason": reason})


def take_back(connection: Connection, row_id: int) -> None:
    """The bus took the row after all."""
    connection.execute(_TAKEN, {"row_id": row_id})
