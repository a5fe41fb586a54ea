"""Verdict: each message ends in exactly one answer to the server, whatever its processing raised.

FastStream's acknowledgement middleware, one further out, sends the answer: an ack when nothing was raised,
and what NackMessage and RejectMessage say. It would nack others without a delay, so none may pass here.
"""

import asyncio
import logging
from types import TracebackType
from typing import Final

from faststream.exceptions import NackMessage, RejectMessage, SubscriberNotFound

from event_bus import dead_letters
from event_bus.errors import MalformedEvent, PoisonMessage
from event_bus.middlewares.base import EventMiddleware

_LOG = logging.getLogger(__name__)
BUS_TROUBLE_DELAY_S: Final = 2.0
"""Delay of a message that the bus itself could not process."""


class VerdictMiddleware(EventMiddleware):
    """Outermost, and called at the very end: it also sees messages that no handler was found for."""

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        """Raises NackMessage or RejectMessage in place of any exception; a return is acknowledged."""
        match exc_val:
            case None | NackMessage():
                return False
            case asyncio.CancelledError() if self.deps.in_flight.draining:  # another process may have it
                _LOG.info("nacked_at_drain", extra=self._where())
                raise NackMessage from exc_val
            case PoisonMessage() | MalformedEvent() | SubscriberNotFound():
                await self._dead_letter(str(exc_val))
                raise RejectMessage from exc_val
            case Exception() | asyncio.CancelledError():
                _LOG.error("bus_failed", exc_info=exc_val, extra=self._where())
                raise NackMessage(delay=BUS_TROUBLE_DELAY_S) from exc_val
        return False

    async def _dead_letter(self, reason: str) -> None:
        """Store the message as a dead letter. Raises NackMessage when that fails: then it is redelivered."""
        durable = self.spec.durable
        if not await dead_letters.stored(self.deps.publisher, self.msg, consumer=durable, reason=reason):
            raise NackMessage(delay=BUS_TROUBLE_DELAY_S)

    def _where(self) -> dict[str, object]:
        sequence = self.msg.metadata.sequence.stream
        return {"consumer": self.spec.durable, "subject": self.msg.subject, "sequence": sequence}
