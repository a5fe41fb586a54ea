"""The loop that removes old versions, by the clock. A sweep that something keeps from ending is tried again
at the next turn; on stop, the sweep under way is abandoned, and the next one does what is left."""

import asyncio
import logging
from contextlib import suppress

from checkpoint_registry.adapters import metrics
from checkpoint_registry.domain.errors import PeerRefused, PeerUnavailable, StoreTrouble
from checkpoint_registry.usecases.retention import PruneVersions
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)


class Sweeper:
    """Runs the retention of published versions."""

    def __init__(self, prune: PruneVersions, *, every_s: float) -> None:
        self._prune = prune
        self._every_s = every_s

    def ready(self) -> str | None:
        """Old versions do no harm for a while."""
        return None

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._every_s)
                return
            await self._sweep()

    async def _sweep(self) -> None:
        try:
            gone = await self._prune.sweep()
        except (PeerUnavailable, PeerRefused, Unavailable, StoreTrouble) as error:
            metrics.SWEEP_FAILURES.inc()
            log.warning("sweep_waits", extra={"why": str(error)})
            return
        metrics.versions_removed(gone)
        for model, versions in gone.items():
            log.info("versions_removed", extra={"model": model, "versions": versions})
