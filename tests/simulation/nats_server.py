"""A nats-server in memory: streams, durables, acknowledgements, redelivery, deduplication."""

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from nats.js.errors import BadRequestError, ServiceUnavailableError
from tests.simulation.virtual_time import SimulatedProcess, VirtualLoop

from event_bus import Topology
from event_bus.topology import ConsumerSpec, Keep, StreamSpec

SERVER: Final = "nats"
_NOT_EXPECTED: Final = 10071
_FULL: Final = 10077
_ID_IS_KNOWN: Final = 10201
_COPIED_S: Final = 0.05
"""A message is copied into another stream within this time."""
Message = tuple[str, bytes, Mapping[str, str]]
"""Subject, payload, headers."""
_EVENT_ID: Final = "Nats-Msg-Id"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_ON: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_CONDITIONS: Final = (_EXPECTED, _EXPECTED_ON)


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject fits a filter with `*` (one token) and `>` (the rest)."""
    have = subject.split(".")
    for at, token in enumerate(pattern.split(".")):
        if token == ">":
            return len(have) > at
        if at >= len(have) or token not in ("*", have[at]):
            return False
    return len(have) == pattern.count(".") + 1


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream."""

    sequence: int
    subject: str
    data: bytes
    headers: Mapping[str, str]
    at: datetime

    @property
    def seq(self) -> int:
        """As nats-py names it."""
        return self.sequence

    @property
    def time(self) -> datetime:
        """As nats-py names it."""
        return self.at


@dataclass(slots=True)
class SimulatedStream:
    """Messages in order, and the ids that were seen within the window."""

    spec: StreamSpec
    messages: OrderedDict[int, StoredMessage] = field(default_factory=OrderedDict)
    last_sequence: int = 0
    copied: int = 0
    """Sequence, in the stream that it copies, of the newest message that was copied."""
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    by_subject: dict[str, list[int]] = field(default_factory=dict)
    consumers: dict[str, "SimulatedConsumer"] = field(default_factory=dict)

    @property
    def first_sequence(self) -> int:
        """Of the oldest message that is kept; one past the last where none is."""
        return next(iter(self.messages), self.last_sequence + 1)

    def last_on(self, pattern: str) -> int:
        """Sequence of the newest message on a subject or filter; 0: there is none."""
        fitting = (at[-1] for subject, at in self.by_subject.items() if at and matches(pattern, subject))
        return max(fitting, default=0)

    def remove(self, sequence: int) -> None:
        """Delete one message."""
        message = self.messages.pop(sequence, None)
        if message is not None:
            self.by_subject[message.subject].remove(sequence)


@dataclass(slots=True)
class _Pending:
    due_at: float
    """When it is delivered again, unless it is answered."""
    num_delivered: int


class SimulatedConsumer:
    """A durable, or a replay without acknowledgements."""

    def __init__(
        self,
        name: str,
        stream: SimulatedStream,
        loop: VirtualLoop,
        filters: Sequence[str],
        *,
        after: int = 0,
        ack_wait_s: float | None = None,
        max_ack_pending: int = 1 << 30,
    ) -> None:
        self.name = name
        self.stream = stream
        self.filters = tuple(filters)
        self.pending: dict[int, _Pending] = {}
        self.waiting: dict[asyncio.Future[None], SimulatedProcess | None] = {}
        """Requests for messages, oldest first, and whose they are."""
        self._loop = loop
        self._cursor = after
        self._ack_wait_s = ack_wait_s
        self._max_ack_pending = max_ack_pending
        self._delivered = 0
        self._fits: dict[str, bool] = {}

    def fits(self, subject: str) -> bool:
        """Whether it reads this subject."""
        if subject not in self._fits:
            self._fits[subject] = any(matches(one, subject) for one in self.filters)
        return self._fits[subject]

    @property
    def is_durable(self) -> bool:
        """Whether it waits for answers, also where its reader has not come to read yet."""
        return self._ack_wait_s is not None

    def floor(self) -> int:
        """All messages up to this one are answered."""
        return min((at - 1 for at in self.pending), default=self._cursor)

    def num_unread(self) -> int:
        """Messages that were never delivered."""
        kept = self.stream.messages
        return sum(sequence > self._cursor and self.fits(kept[sequence].subject) for sequence in kept)

    def has_more(self) -> bool:
        """Whether something may be delivered now."""
        now = self._loop.time()
        return self._cursor < self.stream.last_sequence or any(
            one.due_at <= now for one in self.pending.values()
        )

    def take(self, limit: int) -> list[tuple[StoredMessage, int, int]]:
        """(message, how often it was delivered, number of the delivery); what is due again comes first."""
        now, found = self._loop.time(), []
        for sequence in sorted(at for at, one in self.pending.items() if one.due_at <= now)[:limit]:
            message = self.stream.messages.get(sequence)
            if message is None:
                del self.pending[sequence]
                continue
            found.append(self._delivery(message, self.pending[sequence].num_delivered + 1))
        while len(found) < limit and len(self.pending) < self._max_ack_pending:
            message = self._next_unread()
            if message is None:
                break
            found.append(self._delivery(message, 1))
        return found

    def _next_unread(self) -> StoredMessage | None:
        messages = self.stream.messages
        while self._cursor < self.stream.last_sequence:
            self._cursor += 1
            message = messages.get(self._cursor)
            if message is not None and self.fits(message.subject):
                return message
        return None

    def _delivery(self, message: StoredMessage, count: int) -> tuple[StoredMessage, int, int]:
        self._delivered += 1
        if self._ack_wait_s is not None:
            due_at = self._loop.time() + self._ack_wait_s
            self.pending[message.sequence] = _Pending(due_at, count)
            self._loop.later(self._ack_wait_s, self.wake)
        return message, count, self._delivered

    def done(self, sequence: int) -> None:
        """Acknowledged or terminated."""
        if self.pending.pop(sequence, None) is not None:
            if self.stream.spec.keep is Keep.UNTIL_ACKED:
                self.stream.remove(sequence)
            self.wake()

    def again(self, sequence: int, delay_s: float) -> None:
        """Deliver it again after a while."""
        if sequence in self.pending:
            self.pending[sequence].due_at = self._loop.time() + delay_s
            self._loop.later(delay_s, self.wake)

    def wake(self) -> None:
        """The oldest request is looked at again; those of dead processes are closed connections."""
        while self.waiting:
            more = next(iter(self.waiting))
            process = self.waiting.pop(more)
            if not more.done() and not (process is not None and process.is_dead):
                more.set_result(None)
                return


class SimulatedServer:
    """One nats-server, with the streams and durables of a topology, and the queues of some models."""

    def __init__(
        self,
        loop: VirtualLoop,
        topology: Topology,
        models: Collection[str] = (),
        *,
        without: Collection[ConsumerSpec] = (),
        remembers_s: float = math.inf,
    ) -> None:
        """without: durables whose service does not run; nothing waits for them. remembers_s: for how long a
        stream knows an id, where its specification does not say less."""
        self._remembers_s = remembers_s
        self.loop = loop
        self.on_stored: Callable[[StoredMessage, str], None] = _nothing
        self.loses: Callable[[StoredMessage, str], bool] = _never
        """Whether a stream loses the message before anybody reads it, and that it had it."""
        self.streams = {spec.name: SimulatedStream(spec) for spec in topology.streams}
        self._numbers = itertools.count(1)
        queues = [spec.of_model(model) for spec in topology.queues for model in models]
        for spec in [one for one in (*topology.consumers, *queues) if one not in without]:
            filters = [subject for subject, _ in topology.bound_by(spec)]
            self.add(
                spec.stream,
                spec.durable,
                filters,
                ack_wait_s=spec.ack_wait_s,
                max_ack_pending=spec.max_ack_pending,
            )

    def add(self, stream: str, name: str, filters: Sequence[str], **options: Any) -> SimulatedConsumer:
        """Make a consumer."""
        made = SimulatedConsumer(name, self.streams[stream], self.loop, filters, **options)
        self.streams[stream].consumers[name] = made
        return made

    def new_name(self) -> str:
        """Of a consumer that its creator does not name."""
        return f"ephemeral-{next(self._numbers)}"

    def store(self, stream: str, subject: str, data: bytes, headers: Mapping[str, str]) -> SimpleNamespace:
        """Append a message, unless its id was seen within the window. Raises APIError as the server would."""
        kept = self.streams[stream]
        if (before := self._seen(kept, headers)) is not None:
            return SimpleNamespace(stream=stream, seq=before, duplicate=True)
        _check_expected(kept, subject, headers)
        if 0 < kept.spec.max_msgs <= len(kept.messages) and kept.spec.refuse_when_full:
            raise ServiceUnavailableError(code=503, err_code=_FULL, description="maximum messages exceeded")
        self._append(kept, subject, data, headers)
        return SimpleNamespace(stream=stream, seq=kept.last_sequence, duplicate=False)

    def store_together(self, stream: str, batch: Sequence[Message]) -> SimpleNamespace:
        """Append all messages or none. Raises APIError as the server would."""
        kept = self.streams[stream]
        assert kept.spec.is_atomic
        for subject, _, headers in batch:
            if self._seen(kept, headers) is not None:
                text = "atomic publish contains a message id that is known"
                raise BadRequestError(code=400, err_code=_ID_IS_KNOWN, description=text)
            _check_expected(kept, subject, headers)
        for subject, data, headers in batch:
            self._append(kept, subject, data, headers)
        return SimpleNamespace(stream=stream, seq=kept.last_sequence)

    def forget(self, stream: str) -> None:
        """Remove what every durable has answered, as a stream does at its bounds, but the newest policies."""
        kept = self.streams[stream]
        durables = [one for one in kept.consumers.values() if one.is_durable]
        floor = min((one.floor() for one in durables), default=0)
        newest = {at[-1] for subject, at in kept.by_subject.items() if at and ".policy." in subject}
        for sequence in [at for at in kept.messages if at <= floor and at not in newest]:
            kept.remove(sequence)

    def _seen(self, kept: SimulatedStream, headers: Mapping[str, str]) -> int | None:
        sequence, at_s = kept.seen.get(headers.get(_EVENT_ID, ""), (0, 0.0))
        is_known = sequence and self.loop.time() - at_s < min(kept.spec.duplicate_window_s, self._remembers_s)
        return sequence if is_known else None

    def _copy(self, there: SimulatedStream, here: SimulatedStream) -> None:
        """Copy what was not copied yet, in order, as a stream does that has a source."""
        for message in [one for at, one in there.messages.items() if at > here.copied]:
            here.copied = message.sequence
            for pattern, to in here.spec.copied.items():
                if matches(pattern, message.subject):
                    tokens = message.subject.split(".")
                    model = tokens[pattern.split(".").index("*", 2)]
                    subject = to.replace("$1", tokens[1]).replace("$2", model)
                    plain = {name: one for name, one in message.headers.items() if name not in _CONDITIONS}
                    self._append(here, subject, message.data, plain)

    def _append(self, kept: SimulatedStream, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        kept.last_sequence += 1
        if event_id := headers.get(_EVENT_ID):
            kept.seen[event_id] = (kept.last_sequence, self.loop.time())
        message = StoredMessage(kept.last_sequence, subject, data, headers, self.loop.utc_now())
        on_subject = kept.by_subject.setdefault(subject, [])
        kept.messages[message.sequence] = message
        on_subject.append(message.sequence)
        if 0 < kept.spec.max_per_subject < len(on_subject):
            kept.remove(on_subject[0])
        self.on_stored(message, kept.spec.name)
        if self.loses(message, kept.spec.name):
            kept.remove(message.sequence)
            kept.seen.pop(event_id or "", None)
            return
        for consumer in kept.consumers.values():
            if consumer.waiting and consumer.fits(subject):
                consumer.wake()
        for other in self.streams.values():
            if other.spec.copies_from == kept.spec.name:
                self.loop.later(self.loop.pause_s(_COPIED_S), self._copy, kept, other)


def _check_expected(kept: SimulatedStream, subject: str, headers: Mapping[str, str]) -> None:
    """Raises BadRequestError where another message is the newest on a subject than the publisher expects."""
    if _EXPECTED not in headers:
        return
    last = kept.last_on(headers.get(_EXPECTED_ON, subject))
    if last != int(headers[_EXPECTED]):
        text = f"wrong last sequence: {last}"
        raise BadRequestError(code=400, err_code=_NOT_EXPECTED, description=text)


def _nothing(message: StoredMessage, stream: str) -> None:
    """It is not looked at."""


def _never(message: StoredMessage, stream: str) -> bool:
    """It keeps what it stored."""
    return False
