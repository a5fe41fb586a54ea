"""Gaps are alarms: streams must be there, be those that a reader began with, and keep what it has not read.

A look at streams and durables every LOOK_S seconds. What can pass by itself (a stream is missing, a bound is
near, a copy stands still) is named until it is over. What was lost is named until a person accepts it
(`event_bus.gaps`). The place of each reader, and when its stream was made, are kept in a note on the bus, so
that a start sees what happened meanwhile.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nats.errors import Error as NatsError
from nats.js.api import ConsumerInfo, StreamInfo
from nats.js.errors import NotFoundError

from event_bus import metrics
from event_bus.connection import BusConnection
from event_bus.gaps import GapBook
from event_bus.topology import ATTEMPTS, EVENTS, ConsumerSpec, Keep, StreamSpec
from identities import subjects
from service_kit.clock import utc_now

_LOG = logging.getLogger(__name__)
LOOK_S: Final = 10.0
NEARLY_FULL: Final = 0.8
"""Share of its bound at which a stream is named."""
_NEARLY_AGED: Final = 0.9
SILENT_NS: Final = 30_000_000_000
"""After which a stream that another one copies is named: it says something every second."""
STOOD_STILL_NS: Final = 20_000_000_000
"""Between two looks of a process that was frozen."""
_NOTE_TIMEOUT_S: Final = 5.0
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is. created: of the stream. sequence: everything up to it was read; UNKNOWN."""

    created: datetime
    sequence: int = UNKNOWN


class StreamWatch:
    """The alarms of one process. keeps_its_place: name of its reader without a durable."""

    def __init__(
        self, connection: BusConnection, streams: Sequence[StreamSpec], *, keeps_its_place: str
    ) -> None:
        self._connection = connection
        self._streams = {spec.name: spec for spec in streams}
        self._reader = keeps_its_place
        self._durables: list[ConsumerSpec] = []
        self._places: dict[tuple[str, str], Place] = {}
        self._kept: dict[tuple[str, str], Place | None] = {}
        self._gaps = GapBook(connection.jetstream)
        self._missing: list[str] = []
        self._passing: list[str] = []
        self.reads_facts = False
        """Whether this process reads facts without a durable; else only its durables are of interest."""
        self._begun_anew = False
        self._silent: dict[tuple[str, str], int] = {}
        self._looked_ns = time.monotonic_ns()
        self._stood_still = False

    def watch(self, spec: ConsumerSpec) -> None:
        """Look at this durable too. Before `begin`."""
        self._durables.append(spec)

    def missing(self) -> list[str]:
        """What this process cannot work without; one sentence each."""
        return list(self._missing)

    def alarms(self) -> list[str]:
        """What its readers lost, and what is about to be removed; one sentence each. It works all the
        same.
        """
        readers = {self._reader, *(spec.durable for spec in self._durables)}
        return [*(str(gap) for gap in self._gaps.open() if gap.reader in readers), *self._passing]

    def of_all_readers(self) -> list[str]:
        """Everything that this process knows: also what readers of other processes lost."""
        return [*self._missing, *map(str, self._gaps.open()), *self._passing]

    def begins_again(self, after_sequence: int) -> bool:
        """True once if the place `after_sequence` of the reader without a durable belongs to a stream that
        was deleted and made again. That is recorded as a gap, too.
        """
        is_other, self._begun_anew = self._begun_anew and after_sequence > 0, False
        if is_other:
            text = f"stream {EVENTS} was made anew while {self._reader} was down"
            self._gaps.found(EVENTS, self._reader, f"{text}: what it had not read is lost")
        return is_other

    async def begin(self) -> None:
        """Look for the first time, with the places of earlier processes."""
        await self.look()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """One look; while NATS does not answer, what was seen before stands."""
        since_ns, self._looked_ns = time.monotonic_ns() - self._looked_ns, time.monotonic_ns()
        self._stood_still = since_ns > STOOD_STILL_NS
        try:
            await self._look()
            if ATTEMPTS in self._streams:
                await self._settle()
        except (NatsError, TimeoutError) as error:
            _LOG.warning("streams_not_seen", extra={"error": repr(error)})
        metrics.ALARMS.set(len(self._missing) + len(self.alarms()))

    async def _look(self) -> None:
        infos = {name: info for name in self._streams if (info := await self._info(name)) is not None}
        missing = [
            f"stream {name} does not exist: run upcycle-provision"
            for name in self._streams
            if name not in infos
        ]
        passing = await self._passing_alarms(infos)
        for stream, reader in self._readers(infos):
            await self._compare(stream, reader, infos[stream])
        for spec in self._durables:
            if spec.stream in infos and (text := await self._look_at(spec, infos[spec.stream])) is not None:
                missing.append(text)
        for text in {*missing, *passing} - {*self._missing, *self._passing}:
            _LOG.error("bus_alarm", extra={"what": text})
        self._missing, self._passing = missing, passing

    async def _settle(self) -> None:
        """First the gaps, then the places after them: a process that dies in between finds its gaps again."""
        await self._gaps.settle()
        if not self._gaps.is_said:
            return
        for (stream, reader), place in self._places.items():
            is_untold = self._begun_anew and reader == self._reader
            if is_untold or self._kept.get((stream, reader)) == place:
                continue
            body = json.dumps({"created": place.created.isoformat(), "sequence": place.sequence}).encode()
            await self._connection.jetstream().publish(
                subjects.place(reader, stream), body, stream=ATTEMPTS, timeout=_NOTE_TIMEOUT_S
            )
            self._kept[stream, reader] = place

    def _read_here(self, infos: Mapping[str, StreamInfo]) -> set[str]:
        """Names of the streams that this process reads, and of those that the server copies into them."""
        names = {spec.stream for spec in self._durables} | ({EVENTS} if self.reads_facts else set())
        return names | {name for one in names if one in infos for name in _copied(infos[one])}

    def _readers(self, infos: Mapping[str, StreamInfo]) -> list[tuple[str, str]]:
        """(stream, reader) of everything that is read here; a copied stream is read by who reads the copy."""
        direct = [*((spec.stream, spec.durable) for spec in self._durables), (EVENTS, self._reader)]
        direct = [one for one in direct if one[0] in infos]
        copied = [(name, reader) for stream, reader in direct for name in _copied(infos[stream])]
        return [*direct, *(one for one in copied if one[0] in infos)]

    async def _place(self, stream: str, reader: str) -> Place | None:
        """Where a reader was seen last, also by an earlier process; None for never."""
        key = stream, reader
        if key not in self._kept:
            self._kept[key] = noted = await self._noted(stream, reader)
            if noted is not None:
                self._places[key] = noted
        return self._places.get(key)

    async def _noted(self, stream: str, reader: str) -> Place | None:
        try:
            note = await self._connection.jetstream().get_last_msg(
                ATTEMPTS, subjects.place(reader, stream), direct=True
            )
            kept = json.loads(note.data or b"{}")
            return Place(datetime.fromisoformat(kept["created"]), int(kept["sequence"]))
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("place_not_read", extra={"reader": reader, "error": repr(error)})
            return None

    async def _info(self, name: str) -> StreamInfo | None:
        try:
            return await self._connection.jetstream().stream_info(name)
        except NotFoundError:
            return None

    async def _passing_alarms(self, infos: Mapping[str, StreamInfo]) -> list[str]:
        found: list[str] = []
        read_here = self._read_here(infos)
        for name, info in infos.items():
            filled = max(
                _share(info.state.bytes, info.config.max_bytes),
                _share(info.state.messages, info.config.max_msgs),
            )
            metrics.STREAM_FILLED.labels(name).set(filled)
            if name not in read_here:
                continue
            if filled >= NEARLY_FULL and not await self._nearly_aged(info):
                refuses = self._streams[name].refuse_when_full
                then = "refuses more then" if refuses else "removes its oldest messages before their age"
                found.append(
                    f"stream {name} is filled to {filled:.0%} of its bound and {then}: see upcycle doctor"
                )
        now, known = time.monotonic_ns(), self._silent
        silent = {(name, source) for name in read_here & infos.keys() for source in _silent(infos[name])}
        found += [
            f"stream {name} receives nothing of stream {source}, which it copies"
            for name, source in sorted(silent & known.keys())  # a copy that begins has nothing yet
            if now - known[name, source] >= SILENT_NS
        ]
        self._silent = {one: known.get(one, now) for one in silent}
        return found

    async def _nearly_aged(self, info: StreamInfo) -> bool:
        """Whether age removes the oldest messages, and the bound does not."""
        if not info.config.max_age or not info.state.messages:
            return False
        oldest = (
            await self._connection.jetstream().get_msg(str(info.config.name), info.state.first_seq)
        ).time
        return (
            oldest is not None and (utc_now() - oldest).total_seconds() > _NEARLY_AGED * info.config.max_age
        )

    async def _compare(self, stream: str, reader: str, info: StreamInfo) -> None:
        """Is it the stream that the reader began with?"""
        created = info.created or utc_now()
        place = await self._place(stream, reader)
        if place is not None and place.created == created:
            return
        self._places[stream, reader] = Place(created)
        if place is None:
            return
        if reader == self._reader and not self.reads_facts:
            self._begun_anew = True  # it is told when it begins to read
        else:
            when = f"{created:%Y-%m-%d %H:%M:%S} UTC"
            text = f"stream {stream} was made anew at {when}: what {reader} had not read is lost"
            self._gaps.found(stream, reader, text)

    async def _look_at(self, spec: ConsumerSpec, stream: StreamInfo) -> str | None:
        """Has it read what the stream removed? Returns what is wrong when it does not exist."""
        try:
            info = await self._connection.jetstream().consumer_info(spec.stream, spec.durable)
        except NotFoundError:
            return f"durable {spec.durable} of stream {spec.stream} does not exist: run upcycle-provision"
        if self._streams[spec.stream].keep is Keep.UNTIL_ACKED:  # nothing leaves it unread
            return None
        known = self._places[spec.stream, spec.durable]
        first = stream.state.first_seq
        if await self._has_gap(info, known, first):
            some = f"messages {max(known.sequence, 0) + 1} to {first - 1}"
            text = f"{spec.stream} removed {some} before {spec.durable} had read all of them"
            if _position(info) >= first:
                text = (
                    f"{spec.stream} removed {some} while {spec.durable} stood still, which may have lost some"
                )
            self._gaps.found(spec.stream, spec.durable, text)
        read = _position(info) if _has_more(info) else stream.state.last_seq
        self._places[spec.stream, spec.durable] = Place(known.created, max(known.sequence, read, first - 1))
        return None

    async def _has_gap(self, info: ConsumerInfo, known: Place, first: int) -> bool:
        """Whether messages before `first` were removed that the durable had not read.

        The server moves a durable past a message that is removed while it is out. So one that stands exactly
        before the first, with more to read, was moved there, unless it was there at the last look.
        """
        position = _position(info)
        if known.sequence + 1 >= first:
            return False
        if position >= first:
            return known.sequence != UNKNOWN and await self._passed_unseen(info, first)
        if known.sequence != UNKNOWN:
            return position + 1 < first or _has_more(info)
        if position + 1 == first or not info.num_pending:  # it may have read everything that was for it
            return False
        oldest = (await self._connection.jetstream().get_msg(info.stream_name, first)).time
        return oldest is not None and oldest > info.created  # else they were removed before it was made

    async def _passed_unseen(self, info: ConsumerInfo, first: int) -> bool:
        """Whether this process stood still since its last look, the stream removed all that it had then, and
        no other process noted that the durable had read it."""
        if not self._stood_still:
            return False
        noted = await self._noted(info.stream_name, info.name)
        return noted is None or noted.sequence + 1 < first


def _copied(info: StreamInfo) -> list[str]:
    """Streams that the server copies into this one."""
    return [one.name for one in info.sources or []]


def _silent(info: StreamInfo) -> list[str]:
    """Those of them that the server has received nothing from."""
    received = {
        one.name for one in info.sources or [] if one.active is not None and 0 <= one.active < SILENT_NS
    }
    return [name for name in _copied(info) if name not in received]


def _share(held: int, bound: int | None) -> float:
    """Of a bound; 0 where there is none."""
    return held / bound if bound and bound > 0 else 0.0


def _has_more(info: ConsumerInfo) -> bool:
    """Whether anything is out, or waits."""
    return bool(info.num_pending or info.num_ack_pending)


def _position(info: ConsumerInfo) -> int:
    """Sequence up to which a durable has answered everything that it was given."""
    floor = info.ack_floor.stream_seq if info.ack_floor is not None else 0
    if info.num_ack_pending or info.delivered is None:
        return floor or 0
    return max(floor or 0, info.delivered.stream_seq or 0)
