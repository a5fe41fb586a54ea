"""The stream of dead letters as an operator sees it: list, show, replay, accept.

A replay goes to the one reader that gave the message up, as `up.<tenant>.again.<stream>.<reader>.<subject>`
of the stream that it came from: other readers do not see it. The stream may still remember the message's id,
so it gets a new one. The reader is given subject, event id, headers and body as they were. What cannot be
mended so, a gap among it (`event_bus.gaps`), is accepted: it counts as handled then.
"""

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Self

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import APIError, BadRequestError, NotFoundError

from event_bus import codec, gaps, replays
from event_bus.connection import connected, filters_of
from event_bus.dead_letters import CONSUMER, DELIVERIES, ORIGINAL_ID, REASON, SEQUENCE, STREAM
from event_bus.errors import DeadLetterHandled, DeadLetterUndeliverable, UnknownDeadLetter
from event_bus.publisher import WRONG_LAST_SEQUENCE
from event_bus.pulls import fetched, unsubscribe
from event_bus.readers import OpenReader, Wanted, made_here
from event_bus.topology import DLQ, TASKS
from identities import subjects
from service_kit.groups import BusSettings
from upcycle.errors import Unavailable

LOOKED_AT: Final = 10_000
"""Newest messages of the stream that a list looks at."""
_BATCH: Final = 500
_FETCH_S: Final = 5.0
_FORGOTTEN_AFTER_S: Final = 30.0
_OURS: Final = (CONSUMER, DELIVERIES, ORIGINAL_ID, REASON, SEQUENCE, STREAM)
_ADDED_BY_SERVER: Final = "Nats-"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What became of one message at one reader."""

    number: int
    """Its name: its place in the stream of dead letters."""
    at: datetime
    reader: str
    """The durable that gave it up; `replay-<service>` for a reader that keeps its own place."""
    reason: str
    subject: str
    event_id: str
    stream: str
    sequence: int
    """Where the message itself was."""
    deliveries: int
    is_handled: bool = False
    is_gap: bool = False
    """It is no message: it says which messages the reader lost."""


@dataclass(frozen=True, slots=True)
class Content:
    """A dead letter with the message that is in it."""

    letter: DeadLetter
    headers: Mapping[str, str]
    """As the publisher sent them, without what the server adds."""
    payload: bytes


class DeadLetterBox:
    """Reads the dead letters of a platform and replays them; see `opened`."""

    def __init__(self, jetstream: JetStreamContext, open_reader: OpenReader | None = None) -> None:
        """open_reader: for a process that may not make readers."""
        self._jetstream = jetstream
        self._open_reader = open_reader or made_here(lambda: jetstream)

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: BusSettings) -> AsyncIterator[Self]:
        """Connected within a bound. A NATS that does not answer leaves the block as Unavailable."""
        async with connected(settings, "upcycle bus") as client:
            yield cls(client.jetstream(timeout=_FETCH_S))

    async def letters(self, *, limit: int, with_handled: bool = False) -> list[DeadLetter]:
        """The newest `limit`, oldest first; among the newest LOOKED_AT messages of the stream."""
        newest = (await self._jetstream.stream_info(DLQ)).state.last_seq
        marked = await gaps.handled(self._jetstream)
        found: deque[DeadLetter] = deque(maxlen=max(1, limit))
        async for raw in self._headers_after(max(0, newest - LOOKED_AT)):
            letter = _letter(raw.metadata.sequence.stream, raw.metadata.timestamp, raw.subject, raw.headers)
            if with_handled or letter.number not in marked:
                found.append(replace(letter, is_handled=letter.number in marked))
        return list(found)

    async def content(self, number: int) -> Content:
        """One dead letter with its message. Raises UnknownDeadLetter."""
        try:
            raw = await self._jetstream.get_msg(DLQ, number)
        except (NotFoundError, BadRequestError):
            raw = None
        subject = (raw.subject if raw is not None else None) or ""
        if raw is None or not subjects.is_dead_letter(subject):
            raise UnknownDeadLetter(
                f"there is no dead letter {number}", "`upcycle bus dead list --all` names them"
            )
        headers = dict(raw.headers or {})
        letter = _letter(number, raw.time or datetime.now(UTC), subject, headers)
        letter = replace(letter, is_handled=number in await gaps.handled(self._jetstream))
        original = {key: value for key, value in headers.items() if key not in _OURS}
        original = {key: value for key, value in original.items() if not key.startswith(_ADDED_BY_SERVER)}
        if letter.event_id:
            original[codec.EVENT_ID] = letter.event_id
        return Content(letter, original, raw.data or b"")

    async def replay(self, number: int) -> DeadLetter:
        """Have the reader that gave it up handle the message again; returns what was replayed.

        Raises UnknownDeadLetter, DeadLetterHandled, DeadLetterUndeliverable, Unavailable. A replay that was
        cut off may be repeated: the stream takes it once within its duplicate window, and readers are
        idempotent.
        """
        content = await self.content(number)
        letter = content.letter
        if letter.is_handled:
            raise _handled(letter)
        if letter.is_gap:
            raise DeadLetterUndeliverable(
                f"dead letter {number} says what {letter.reader} lost: there is no message to replay",
                f"upcycle bus dead accept {number}, when you know what it cost",
            )
        await self._check_reader(letter)
        await self._check_original(content)
        subject = subjects.again(letter.stream, letter.reader, letter.subject)
        headers = {**content.headers, codec.EVENT_ID: codec.again_id(number, letter.event_id)}
        try:
            await self._jetstream.publish(subject, content.payload, stream=letter.stream, headers=headers)
        except APIError as error:
            raise DeadLetterUndeliverable(
                f"stream {letter.stream} refuses dead letter {number}: {error.description}"
            ) from error
        await self._mark(letter)
        return letter

    async def accept(self, number: int) -> DeadLetter:
        """Handle it without a replay; returns what was accepted. Raises UnknownDeadLetter,
        DeadLetterHandled, Unavailable.
        """
        letter = (await self.content(number)).letter
        if letter.is_handled:
            raise _handled(letter)
        await self._mark(letter)
        return letter

    async def _check_reader(self, letter: DeadLetter) -> None:
        if not letter.stream or not letter.reader:
            raise DeadLetterUndeliverable(f"dead letter {letter.number} does not say who gave it up")
        if replays.keeps_its_place(letter.reader):
            return
        try:
            config = (await self._jetstream.consumer_info(letter.stream, letter.reader)).config
        except NotFoundError as error:
            raise DeadLetterUndeliverable(
                f"dead letter {letter.number} was given up by {letter.reader} of stream {letter.stream}, "
                "which does not exist any more",
                "run upcycle-provision if it should",
            ) from error
        if subjects.all_again(letter.stream, letter.reader) not in filters_of(config):
            raise DeadLetterUndeliverable(
                f"{letter.reader} does not read what is replayed to it",
                "run the upcycle-provision of this version",
            )

    async def _check_original(self, content: Content) -> None:
        """Each reader may write dead letters, also of facts that only another service may publish: what goes
        on as a fact is one that the stream has. A command is gone from its stream once it was given up; only
        the samplers, who read commands, write dead letters of them."""
        letter = content.letter
        if letter.stream == TASKS:
            return
        try:
            raw = await self._jetstream.get_msg(letter.stream, letter.sequence)
        except (NotFoundError, BadRequestError) as error:
            raise DeadLetterUndeliverable(
                f"stream {letter.stream} has no message {letter.sequence} any more: nothing says that "
                f"dead letter {letter.number} is what was published",
                f"upcycle bus dead accept {letter.number}, when you know what it cost",
            ) from error
        subject, headers = raw.subject or "", raw.headers or {}
        stored = (subjects.first_time(subject), codec.event_id_of(subject, headers), raw.data or b"")
        if stored != (letter.subject, letter.event_id, content.payload):
            raise DeadLetterUndeliverable(
                f"dead letter {letter.number} is not message {letter.sequence} of stream {letter.stream}, "
                "as it says: its writer changed or invented it",
                f"look at it: upcycle bus dead show {letter.number}; then accept it",
            )

    async def _mark(self, letter: DeadLetter) -> None:
        subject = subjects.handled(letter.number, subjects.tenant_of(letter.subject))
        only_once = {"Nats-Expected-Last-Subject-Sequence": "0"}
        try:
            await self._jetstream.publish(subject, b"{}", stream=DLQ, headers=only_once)
        except APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:  # somebody else was first
                raise _handled(letter) from error
            raise Unavailable(
                f"stream {DLQ} does not take the note that dead letter {letter.number} was handled "
                f"({error.description}): mend the stream, then repeat the command"
            ) from error

    async def _headers_after(self, sequence: int) -> AsyncIterator[Msg]:
        """Dead letters after `sequence`, without their bodies. Raises Unavailable."""
        letters = (subjects.all_dead_letters(),)
        reader = await self._open_reader(
            Wanted(DLQ, letters, sequence, _FORGOTTEN_AFTER_S, headers_only=True, description="dead letters")
        )
        left = reader.num_pending
        subscription = await self._jetstream.pull_subscribe_bind(reader.name, stream=DLQ)
        try:
            while left > 0:
                batch = await fetched(subscription, min(_BATCH, left), _FETCH_S)
                if not batch:
                    raise Unavailable(f"{left} dead letters did not come within {_FETCH_S:g} s")
                for raw in batch:
                    yield raw
                left -= len(batch)
        finally:
            await unsubscribe(subscription)


def _handled(letter: DeadLetter) -> DeadLetterHandled:
    return DeadLetterHandled(
        f"dead letter {letter.number} was handled already", "what fails again is a new dead letter"
    )


def _letter(number: int, at: datetime, subject: str, headers: Mapping[str, str] | None) -> DeadLetter:
    said = headers or {}
    return DeadLetter(
        number=number,
        at=at,
        reader=said.get(CONSUMER, ""),
        reason=said.get(REASON, ""),
        subject=subjects.original(subject),
        event_id=said.get(ORIGINAL_ID, ""),
        stream=said.get(STREAM, ""),
        sequence=_number(said.get(SEQUENCE)),
        deliveries=_number(said.get(DELIVERIES)),
        is_gap=subjects.is_gap(subject),
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
