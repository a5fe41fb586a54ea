"""How often a message was answered and how often it failed, kept in a stream of one note per message.

The server counts deliveries only: it does not know whether a handler raised `Unavailable`, was cancelled by
a drain, failed, or died with its process. The note keeps that, across restarts and replicas. It is written
when a message is nacked and read when one is redelivered.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from event_bus.topology import ATTEMPTS
from identities import subjects
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_WRITE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """What became of the earlier deliveries of one message to one durable."""

    answered: int = 0
    """Deliveries that were nacked, by a handler's error or a drain."""
    failures: int = 0
    """Those of them that failed."""

    def unanswered(self, num_delivered: int) -> int:
        """Earlier deliveries that got neither ack nor nack: their process died or was cut off."""
        return max(0, num_delivered - 1 - self.answered)


class AttemptNotes:
    """Reads and writes the notes."""

    def __init__(self, jetstream: Callable[[], JetStreamContext]) -> None:
        self._jetstream = jetstream

    async def read(self, raw: Msg) -> Attempts:
        """The note of a message; a first delivery has none. Raises Unavailable."""
        if raw.metadata.num_delivered == 1:
            return Attempts()
        try:
            note = await self._jetstream().get_last_msg(ATTEMPTS, _subject(raw), direct=True)
        except NotFoundError:
            return Attempts()
        except NatsError as error:
            raise Unavailable(f"cannot read the attempts of {_subject(raw)}: {error!r}") from error
        kept = json.loads(note.data or b"{}")
        return Attempts(int(kept.get("answered", 0)), int(kept.get("failures", 0)))

    async def write(self, raw: Msg, attempts: Attempts) -> None:
        """Keep a note. When it cannot be kept, the next delivery counts this one as unanswered; that errs
        to more tries.
        """
        body = json.dumps({"answered": attempts.answered, "failures": attempts.failures}).encode()
        try:
            await self._jetstream().publish(_subject(raw), body, stream=ATTEMPTS, timeout=_WRITE_TIMEOUT_S)
        except NatsError as error:
            _LOG.warning("attempts_not_kept", extra={"subject": _subject(raw), "error": repr(error)})


def _subject(raw: Msg) -> str:
    where = raw.metadata
    tenant = subjects.tenant_of(raw.subject)
    return subjects.attempt(where.consumer, where.stream, where.sequence.stream, tenant)
