"""How many requests this sampler has at one engine at once, by what the engine's metrics say.

An engine batches what fits and queues the rest. A queue there makes nothing faster: its requests lose the
time in which they must be answered, and cannot go to an engine that becomes free first. So they wait here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from engine_client import EngineError, EngineLoad

log = logging.getLogger(__name__)

_SHRINK: Final = 0.7
_GROW: Final = 0.1
_QUEUE_SHARE: Final = 4
"""A queue of a fourth of the batch keeps it full; a longer one is too long."""
_UNLIMITED: Final = 4096.0


class EngineWindow:
    """Of one engine. Unlimited until its queue is too long; then less, and more again while it is not."""

    def __init__(self, look_s: float) -> None:
        """look_s: between two looks at its metrics; 0: never, and no limit."""
        self.limit = math.inf
        self._look_s = look_s
        self._looked_s = -math.inf
        self._look: asyncio.Task[None] | None = None

    def has_room(self, in_flight: int) -> bool:
        """Whether one more request may be sent."""
        return in_flight < self.limit

    def look_at(self, load_of: Callable[[], Awaitable[EngineLoad]], in_flight: Callable[[], int]) -> None:
        """Read its load in the background, where the last look is old. in_flight: of this sampler, when the
        answer is there."""
        now_s = time.monotonic()
        if not self._look_s or now_s - self._looked_s < self._look_s:
            return
        if self._look is None or self._look.done():
            self._looked_s = now_s
            self._look = asyncio.create_task(self._read(load_of, in_flight), name="look at an engine's load")

    async def close(self) -> None:
        """Look no more."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)

    async def _read(self, load_of: Callable[[], Awaitable[EngineLoad]], in_flight: Callable[[], int]) -> None:
        try:
            load = await load_of()
        except EngineError as error:
            log.info("engine_says_no_load", extra={"why": str(error)})
            return
        self.see(load, in_flight())

    def see(self, load: EngineLoad, in_flight: int) -> None:
        """Adapt. An engine that runs nothing is paused, or about to begin: it says nothing about its room.
        Its queue says nothing while what was sent before the limit fell is still there."""
        if not load.num_running or in_flight > self.limit:
            return
        if load.num_waiting > max(1, load.num_running // _QUEUE_SHARE):
            self.limit = max(1.0, math.floor(_SHRINK * in_flight))
        elif in_flight >= self.limit:
            grown = self.limit + max(1.0, math.floor(_GROW * self.limit))
            self.limit = math.inf if grown > _UNLIMITED else grown
