"""Attempts: a message that failed is redelivered after a growing delay, and given up after max_deliver.

`Unavailable` and a drain are no failures. Deliveries that ended unanswered (the process died) count apart.
"""

import asyncio
import logging
from typing import Any, Final

from faststream.exceptions import NackMessage
from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus import codec, tracing
from event_bus.attempts import Attempts
from event_bus.errors import MalformedEvent, PoisonMessage
from event_bus.incoming import retry_after_s, retry_delay_s
from event_bus.middlewares.base import FAILURES, EventMiddleware
from event_bus.middlewares.verdict import BUS_TROUBLE_DELAY_S
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_DRAIN_NOTE_S: Final = 3.0


class AttemptsMiddleware(EventMiddleware):
    """Turns exceptions of the handler into NackMessage with a delay, or PoisonMessage after too many."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Raises NackMessage, PoisonMessage, MalformedEvent; CancelledError at a drain."""
        before = await self._earlier_attempts()
        try:
            with self.context.scope(FAILURES, before.failures):
                return await call_next(msg)
        except (PoisonMessage, MalformedEvent):
            raise
        except Unavailable as error:
            await self.deps.notes.write(self.msg, before.then(self._num_delivered))
            raise NackMessage(delay=retry_after_s(error, self.deps.timings)) from error
        except asyncio.CancelledError:
            await self._note_drain(before)
            raise
        except Exception as error:
            attempts = before.then(self._num_delivered, failed=True)
            self._report(error, attempts)
            if 0 < self.spec.max_deliver <= attempts.failures:
                raise PoisonMessage(f"failed {attempts.failures} times, last: {error!r}") from error
            await self.deps.notes.write(self.msg, attempts)
            raise NackMessage(delay=retry_delay_s(attempts.failures, self.deps.timings)) from error

    async def _earlier_attempts(self) -> Attempts:
        """Raises NackMessage, PoisonMessage."""
        notes, gives_up = self.deps.notes, self.spec.max_deliver > 0
        try:
            return await (notes.begun(self.msg) if gives_up else notes.read(self.msg))
        except Unavailable as error:
            _LOG.warning("attempts_unknown", extra={"consumer": self.spec.durable, "error": str(error)})
            raise NackMessage(delay=BUS_TROUBLE_DELAY_S) from error

    @property
    def _num_delivered(self) -> int:
        return int(self.msg.metadata.num_delivered)

    async def _note_drain(self, before: Attempts) -> None:
        try:
            async with asyncio.timeout(_DRAIN_NOTE_S):
                await self.deps.notes.write(self.msg, before.then(self._num_delivered))
        except TimeoutError:  # the next delivery counts this one as unanswered
            _LOG.warning("drain_not_noted", extra={"consumer": self.spec.durable})

    def _report(self, error: Exception, attempts: Attempts) -> None:
        tracing.mark_failed(error)
        extra: dict[str, object] = {"consumer": self.spec.durable, "max_deliver": self.spec.max_deliver}
        extra["event_id"] = (self.msg.headers or {}).get(codec.EVENT_ID)
        extra |= {"failures": attempts.failures, "num_delivered": self.msg.metadata.num_delivered}
        _LOG.error("handler_failed", exc_info=error, extra=extra)
