"""How often a message was answered and how often it failed, kept in a stream of one note per message.

The server counts deliveries only: it does not know whether a handler raised `Unavailable`, was cancelled by
a drain, failed, or died with its process. The note keeps that, across restarts and replicas. It is written
when a message is nacked and read when one is redelivered.

Notes may be refused or lost. So a message is not given up for silence alone: before its last delivery a note
is kept that it begins, and only one that is silent after that kills its handler.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from event_bus.errors import PoisonMessage
from event_bus.topology import ATTEMPTS
from identities import subjects
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_WRITE_TIMEOUT_S: Final = 5.0
_MAX_REMEMBERED: Final = 20_000
"""Notes that could not be kept."""
MAX_UNANSWERED: Final = 10
"""Deliveries that may end without an answer before the message is given up: it seems to kill its handler."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """What became of the earlier deliveries of one message to one durable."""

    answered: int = 0
    """Deliveries that were nacked, by a handler's error or a drain."""
    failures: int = 0
    """Those of them that failed."""
    last_begun: int = 0
    """The delivery that was begun as the last one, after many of which nothing is known; 0: none was."""

    def then(self, num_delivered: int, *, failed: bool = False) -> "Attempts":
        """After an answer to this delivery. One to the last delivery shows that those before it killed
        nothing."""
        answered = num_delivered if self.last_begun else self.answered + 1
        return Attempts(answered, self.failures + failed)

    def unanswered(self, num_delivered: int) -> int:
        """Earlier deliveries that got neither ack nor nack: their process died or was cut off."""
        return max(0, num_delivered - 1 - self.answered)


class AttemptNotes:
    """Reads and writes the notes."""

    def __init__(self, jetstream: Callable[[], JetStreamContext]) -> None:
        self._jetstream = jetstream
        self._remembered: OrderedDict[str, Attempts] = OrderedDict()
        """What this process answered and could not note."""

    async def begun(self, raw: Msg) -> Attempts:
        """What became of a message before the delivery that begins now. Raises PoisonMessage for one that
        seems to kill its handler, and Unavailable where that cannot be told."""
        before = await self.read(raw)
        num_delivered = raw.metadata.num_delivered
        unanswered = before.unanswered(num_delivered)
        if unanswered < MAX_UNANSWERED - 1:
            return before
        if before.last_begun:
            raise PoisonMessage(
                f"{unanswered} deliveries ended without an answer: it seems to kill its handler"
            )
        last = replace(before, last_begun=num_delivered)
        try:
            await self._keep(raw, last)
        except NatsError as error:
            raise Unavailable(f"cannot note the attempts of {_subject(raw)}: {error!r}") from error
        return last

    async def read(self, raw: Msg) -> Attempts:
        """The note of a message; a first delivery has none. Raises Unavailable."""
        if raw.metadata.num_delivered == 1:
            return Attempts()
        remembered = self._remembered.get(_subject(raw), Attempts())
        try:
            note = await self._jetstream().get_last_msg(ATTEMPTS, _subject(raw), direct=True)
        except NotFoundError:
            return remembered
        except NatsError as error:
            raise Unavailable(f"cannot read the attempts of {_subject(raw)}: {error!r}") from error
        kept = json.loads(note.data or b"{}")
        noted = Attempts(**{key: int(kept.get(key, 0)) for key in asdict(remembered)})
        return remembered if remembered.answered > noted.answered else noted

    async def write(self, raw: Msg, attempts: Attempts) -> None:
        """Keep a note. One that cannot be kept is remembered by this process; another one counts this
        delivery as unanswered."""
        subject = _subject(raw)
        try:
            await self._keep(raw, attempts)
        except NatsError as error:
            _LOG.warning("attempts_not_kept", extra={"subject": subject, "error": repr(error)})
            self._remembered[subject] = attempts
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        else:
            self._remembered.pop(subject, None)

    async def _keep(self, raw: Msg, attempts: Attempts) -> None:
        """Raises NatsError."""
        body = json.dumps(asdict(attempts)).encode()
        await self._jetstream().publish(_subject(raw), body, stream=ATTEMPTS, timeout=_WRITE_TIMEOUT_S)


def _subject(raw: Msg) -> str:
    where = raw.metadata
    tenant = subjects.tenant_of(raw.subject)
    return subjects.attempt(where.consumer, where.stream, where.sequence.stream, tenant)
