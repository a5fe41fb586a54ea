"""The loop that keeps the engine's lease alive: at every change, and every few seconds."""

import asyncio
import contextlib
from collections.abc import Callable

from policy_engine.domain import LeaseFacts
from policy_engine.ports import Announcer
from service_kit.loops import until_stopped
from upcycle.errors import Unavailable


class LeaseLoop:
    """Renews the lease with the facts of the moment; there is none before an engine serves."""

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
        await until_stopped(
            stop, self._renew, every_s=self._renew_s, wake=self._changed, waiting="lease_not_renewed"
        )
        with contextlib.suppress(Unavailable):
            await self._renew_for(1.0)  # let it lapse soon, so that the engine is routed to no more

    async def _renew(self) -> None:
        try:
            self._lost = await self._renew_for(self._ttl_s)
        except Unavailable as error:
            self._lost = f"the lease is not renewed: {error}"
            raise

    async def _renew_for(self, ttl_s: float) -> str | None:
        """None once the lease is renewed, else what is missing."""
        facts = self._facts()
        if facts is None:
            return "no engine serves yet"
        await self._announcer.renew_lease(facts, ttl_s)
        return None
