"""Gaps: what readers lost. Each is a dead letter without a message, open until a person accepts it.

One letter of a reader and stream is open at a time; what the reader loses meanwhile is logged and counted.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

from event_bus import metrics
from event_bus.dead_letters import CONSUMER, REASON, STREAM, one_line
from event_bus.topology import DLQ
from identities import subjects

_LOG = logging.getLogger(__name__)
_STORE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Gap:
    """What `reader` lost. number: of its dead letter; 0 while there is none."""

    reader: str
    text: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.text} (upcycle bus dead accept {self.number})" if self.number else self.text


class GapBook:
    """The open gaps of all readers, as one process knows them."""

    def __init__(self, jetstream: Callable[[], JetStreamContext]) -> None:
        self._jetstream = jetstream
        self._newest: dict[str, Gap] = {}
        self._handled: frozenset[int] = frozenset()
        self._unsaid: dict[str, Gap] = {}

    @property
    def is_said(self) -> bool:
        """Whether the stream of dead letters has all that was found."""
        return not self._unsaid

    def found(self, stream: str, reader: str, text: str) -> None:
        """`reader` lost messages of `stream`. The next `settle` stores it."""
        metrics.GAPS.labels(reader).inc()
        _LOG.error("bus_gap", extra={"reader": reader, "stream": stream, "what": text})
        self._unsaid.setdefault(subjects.gap(reader, stream), Gap(reader, text))

    def open(self) -> list[Gap]:
        """What is not accepted yet."""
        stored = {subject: gap for subject, gap in self._newest.items() if self._is_open(subject)}
        return list((self._unsaid | stored).values())

    async def settle(self) -> None:
        """Read which gaps are open, and store what was found. Raises what NATS raises."""
        await self._read()
        for subject, gap in list(self._unsaid.items()):
            if not self._is_open(subject) and not await self._store(subject, gap):
                continue  # another replica was faster; the next look reads its letter
            del self._unsaid[subject]

    def _is_open(self, subject: str) -> bool:
        return (gap := self._newest.get(subject)) is not None and gap.number not in self._handled

    async def _read(self) -> None:
        all_of_them = await self._jetstream().stream_info(DLQ, subjects_filter=subjects.all_gaps())
        newest: dict[str, Gap] = {}
        for subject in all_of_them.state.subjects or {}:
            try:
                raw = await self._jetstream().get_last_msg(DLQ, subject)
            except NotFoundError:  # it aged out since
                continue
            said = raw.headers or {}
            newest[subject] = Gap(said.get(CONSUMER, ""), said.get(REASON, ""), raw.seq or 0)
        self._handled = await handled(self._jetstream()) if newest else frozenset()
        self._newest = newest

    async def _store(self, subject: str, gap: Gap) -> bool:
        """False: not stored, because there is a newer letter than this process knows."""
        known = self._newest[subject].number if subject in self._newest else 0
        headers = {
            REASON: one_line(gap.text),
            CONSUMER: gap.reader,
            STREAM: subjects.stream_of_gap(subject),
            "Nats-Expected-Last-Subject-Sequence": str(known),
        }
        try:
            ack = await self._jetstream().publish(subject, b"", stream=DLQ, headers=headers, timeout=_STORE_S)
        except APIError as error:
            _LOG.warning("gap_not_stored", extra={"reader": gap.reader, "error": repr(error)})
            return False
        self._newest[subject] = Gap(gap.reader, gap.text, ack.seq)
        return True


async def handled(jetstream: JetStreamContext) -> frozenset[int]:
    """Numbers of the dead letters that were replayed or accepted."""
    marks = subjects.handled(None, tenant=None)
    state = (await jetstream.stream_info(DLQ, subjects_filter=marks)).state
    found = map(subjects.handled_number, state.subjects or {})
    return frozenset(number for number in found if number is not None)
