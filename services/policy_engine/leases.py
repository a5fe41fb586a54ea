"""The loop that keeps the engine's lease alive: at every change, and every few seconds."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from policy_engine.domain import LeaseFacts, ModelUnknown, PlatformUnavailable
from policy_engine.ports import Announcer

log = logging.getLogger(__name__)


class LeaseLoop:
    """Renews what `facts` says; nothing is promised before an engine serves."""

    def __init__(
        self, announcer: Announcer, facts: Callable[[], LeaseFacts | None], *, renew_s: float, ttl_s: float
    ) -> None:
        self._announcer = announcer
        self._facts = facts
        self._renew_s = renew_s
        self._ttl_s = ttl_s
        self._changed = asyncio.Event()
        self._lost: str | None = "not yet renewed"

    def changed(self) -> None:
        """Renew now."""
        self._changed.set()

    def ready(self) -> str | None:
        """None while the registry lists the engine."""
        return self._lost

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self._changed.clear()
            await self._renew()
            waits = {asyncio.create_task(self._changed.wait()), asyncio.create_task(stop.wait())}
            await asyncio.wait(waits, timeout=self._renew_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        with contextlib.suppress(PlatformUnavailable, ModelUnknown):
            await self._last_word()

    async def _renew(self) -> None:
        facts = self._facts()
        if facts is None:
            self._lost = "no engine serves yet"
            return
        try:
            await self._announcer.renew_lease(facts, self._ttl_s)
            self._lost = None
        except (PlatformUnavailable, ModelUnknown) as error:
            self._lost = f"the lease is not renewed: {error}"
            log.warning("lease_not_renewed", extra={"why": str(error)})

    async def _last_word(self) -> None:
        """Say goodbye, so that nobody has to wait for the lease to lapse."""
        facts = self._facts()
        if facts is not None:
            await self._announcer.renew_lease(facts, 1.0)
