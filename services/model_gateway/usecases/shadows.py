"""Shadow requests: once head has answered, the version of a canary release is asked the same. Its answer is
recorded like captured traffic, and no client gets it.

No request waits for a shadow: they wait in a bounded queue, run one at a time on an engine that no request
uses, and end as soon as one does.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from model_gateway import telemetry
from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.routing import EngineRoute
from model_gateway.domain.sessions import SessionKey
from model_gateway.usecases.pick import PickEngine
from model_gateway.usecases.recording import RecordCalls
from model_gateway.usecases.relay import EngineRelay
from service_kit.loops import first_of, pause

log = logging.getLogger(__name__)

MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 16 << 20
"""Of the bodies of those that wait: parsed, each takes several times as much."""
_IDLE_S: Final = 10.0
"""Longest that a shadow waits for an engine without requests."""
_LOOK_S: Final = 0.05
_LONGEST_WAIT_S: Final = 60.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class _Shadow:
    call: CompletionCall
    key: SessionKey


class ShadowRequests:
    """Requests that are sent a second time."""

    def __init__(
        self, pick: PickEngine, relay: EngineRelay, calls: RecordCalls, *, now: Callable[[], datetime]
    ) -> None:
        self._pick = pick
        self._relay = relay
        self._calls = calls
        self._now = now
        self._waiting: deque[_Shadow] = deque()
        self._arrived = asyncio.Event()

    def offer(self, call: CompletionCall, key_id: str, request_id: str) -> None:
        """Head has answered `call`; nothing happens where it has no shadow. One too many is counted."""
        if call.shadow is None:
            return
        size = sum(len(one.call.raw) for one in self._waiting) + len(call.raw)
        if len(self._waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
            _count(call, "queue_full")
            return
        # Recorded under an id of its own: the session of the request is what its client saw.
        key = SessionKey(f"shadow:{request_id}", key_id, captured=True)
        self._waiting.append(_Shadow(call.as_shadow(), key))
        self._arrived.set()

    async def run(self, stop: asyncio.Event) -> None:
        """One after the other, until stopped."""
        while await pause(stop, _LONGEST_WAIT_S, self._arrived):
            while self._waiting and not stop.is_set():
                shadow = self._waiting.popleft()
                async with first_of(stop.wait(), self._play(shadow)) as (_, played):
                    if played.done():
                        _count(shadow.call, played.result())

    async def _play(self, shadow: _Shadow) -> str:
        """What became of it."""
        engine = await self._idle_engine(shadow.call)
        if isinstance(engine, str):
            return engine
        work = asyncio.create_task(self._recorded(shadow, engine))
        with self._pick.in_background(engine, work):
            try:
                await asyncio.wait([work])
            finally:
                work.cancel()
        if work.cancelled():
            return "gave_way"
        if (error := work.exception()) is not None:
            log.warning("shadow_failed", extra={"model": str(shadow.call.target), "why": repr(error)})
            return "failed"
        return "recorded"

    async def _idle_engine(self, call: CompletionCall) -> EngineRoute | str:
        """Or why there is none."""
        until = time.monotonic() + _IDLE_S
        while (engine := self._pick.idle_holder(call.target)) is None:
            if time.monotonic() >= until:
                return "gave_way" if self._pick.holds(call.target) else "not_served"
            await asyncio.sleep(_LOOK_S)
        return engine

    async def _recorded(self, shadow: _Shadow, engine: EngineRoute) -> None:
        call, started_at = shadow.call, self._now()
        answer = await self._relay.once(call, engine)
        if answer.status != _OK or answer.weights is None:
            raise GatewayError(f"engine {engine.engine_id} answered {answer.status}")
        recorded = await self._calls.call_of(shadow.key, call, answer.choices, answer.weights, started_at)
        await self._calls.add(recorded)


def _count(call: CompletionCall, outcome: str) -> None:
    telemetry.SHADOWS.labels(call.target.model, outcome).inc()
