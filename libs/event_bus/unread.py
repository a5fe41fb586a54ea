"""What durables have not read, or gave up: asked before an answer about what is not there is believed."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from event_bus.dead_letter_box import LOOKED_AT, DeadLetter, DeadLetterBox
from event_bus.readers import OpenReader
from event_bus.topology import DLQ, ConsumerSpec, Topology
from upcycle.errors import Unavailable
from upcycle.wording import amount

_NAMED: Final = 3
"""Dead letters that a sentence names."""


class GivenUp:
    """What readers gave up, as the stream of dead letters says. It is listed again only once it has changed:
    who removes asks before each batch."""

    def __init__(self, open_reader: OpenReader | None = None) -> None:
        """open_reader: see DeadLetterBox."""
        self._open_reader = open_reader
        self._seen: tuple[object, ...] | None = None
        self._letters: Sequence[DeadLetter] = ()

    async def by(self, jetstream: JetStreamContext, readers: Collection[str]) -> str | None:
        """None: nothing that is not handled."""
        info = await jetstream.stream_info(DLQ)
        # A note that a letter was handled is a message of the same stream.
        seen = (info.created, info.state.first_seq, info.state.last_seq, info.state.messages)
        if not info.state.messages:
            return None
        if seen != self._seen:
            self._letters = await DeadLetterBox(jetstream, self._open_reader).letters(limit=LOOKED_AT)
            self._seen = seen
        mine = [letter for letter in self._letters if letter.reader in readers]
        if not mine:
            return None
        numbers = ", ".join(str(letter.number) for letter in mine[:_NAMED])
        return f"{mine[0].reader} gave up {amount(len(mine), 'message')}, see upcycle bus dead show {numbers}"


async def unread(
    jetstream: JetStreamContext,
    topology: Topology,
    durables: Collection[ConsumerSpec],
    before: datetime,
    given_up: GivenUp,
) -> str | None:
    """What some durable has not handled of what was stored before a moment, or gave up; None: nothing. Raises
    Unavailable."""
    if (why := await behind(jetstream, topology, durables, before)) is not None:
        return why
    with _asking():
        return await given_up.by(jetstream, {spec.durable for spec in durables})


async def behind(
    jetstream: JetStreamContext, topology: Topology, durables: Collection[ConsumerSpec], before: datetime
) -> str | None:
    """What some durable is yet to handle of what was stored before a moment; None: nothing. What was given up
    is handled. Raises Unavailable."""
    with _asking():
        for spec in durables:
            if (why := await _behind(jetstream, topology, spec, before)) is not None:
                return why
    return None


@contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except (NatsError, TimeoutError) as error:
        raise Unavailable(f"NATS does not say what is unread: {error!r}") from error


async def _behind(
    jetstream: JetStreamContext, topology: Topology, spec: ConsumerSpec, before: datetime
) -> str | None:
    info = await jetstream.consumer_info(spec.stream, spec.durable)
    number = (info.num_pending or 0) + (info.num_ack_pending or 0)
    if not number:
        return None
    read = (info.ack_floor.stream_seq if info.ack_floor is not None else 0) or 0
    oldest = [
        moment
        for subject in topology.filters_of(spec)
        if (moment := await _first_after(jetstream, spec.stream, subject, read)) is not None
    ]
    if not oldest or min(oldest) >= before:
        return None
    unread = f"{amount(number, 'message')} unread"
    return f"{spec.durable} has {unread}, the oldest of {min(oldest):%Y-%m-%d %H:%M} UTC"


async def _first_after(
    jetstream: JetStreamContext, stream: str, subject: str, sequence: int
) -> datetime | None:
    try:
        return (await jetstream.get_msg(stream, sequence + 1, subject, next=True)).time
    except NotFoundError:
        return None
