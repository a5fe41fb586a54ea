"""Captured calls on their way through the operator's redaction. Until they are through, they are in memory
alone; a call whose redaction fails in any way is not stored, and counted."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import orjson

from model_gateway import telemetry
from model_gateway.adapters.redaction import RedactionFailed, RedactionOverran, RedactionProcess
from model_gateway.domain.redaction import BadRedaction, redacted, shown
from model_gateway.domain.sessions import RecordedCall
from service_kit.loops import first_of, pause

log = logging.getLogger(__name__)
_LONGEST_WAIT_S: Final = 60.0
Deliver = Callable[[RecordedCall], object]


class RedactCaptures:
    """One call after the other. What still waits when the gateway stops is not stored."""

    def __init__(self, function: RedactionProcess) -> None:
        self._function = function
        self._waiting: deque[tuple[RecordedCall, Deliver]] = deque()
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> list[RecordedCall]:
        """Calls that are not redacted yet."""
        return [call for call, _ in self._waiting]

    def offer(self, call: RecordedCall, deliver: Deliver) -> None:
        """`deliver` gets what may be stored of the call, if anything may."""
        self._waiting.append((call, deliver))
        self._arrived.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        while await pause(stop, _LONGEST_WAIT_S, self._arrived):
            while self._waiting and not stop.is_set():
                call, deliver = self._waiting.popleft()
                async with first_of(stop.wait(), self._redact(call, deliver)) as (_, done):
                    if done.done():
                        done.result()
        telemetry.CAPTURE_REDACTED.labels("stopped").inc(len(self._waiting))
        self._waiting.clear()

    async def _redact(self, call: RecordedCall, deliver: Deliver) -> None:
        outcome = "failed"
        try:
            before = orjson.loads(orjson.dumps(shown(call)))
            after = await self._function(before)
            if after is None:
                outcome = "dropped"
                return
            kept = redacted(call, before, after)
            outcome = "unchanged" if kept is call else "changed"
            deliver(kept)
        except RedactionOverran:
            outcome = "overran"
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        except Exception as error:
            # The text of any other error may be content.
            is_ours = isinstance(error, RedactionFailed | BadRedaction)
            why = str(error) if is_ours else type(error).__name__
            log.warning("capture_not_redacted", extra={"why": why})
        finally:
            telemetry.CAPTURE_REDACTED.labels(outcome).inc()
