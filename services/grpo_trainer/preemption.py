"""Preemption: a spot machine announces it by SIGTERM or SIGUSR1 and disappears half a minute later.

The first signal of either kind asks the service to stop: steps under way become durable if there is time.
Shortly before the machine goes, the process exits in any case. What was not finished is lost as in a crash,
and the next start resumes from the newest durable state.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

EXIT_LEFT_BY_FORCE: Final = 1
_MARGIN: Final = 0.1
"""Share of the grace that is kept back for the exit itself."""


class PreemptionWatch:
    """A component that is stopped first: from then on the process has `grace_s` to leave."""

    name = "preemption"

    def __init__(self, grace_s: float, *, leave: Callable[[], None]) -> None:
        """leave: asks the service to stop."""
        self._grace_s = grace_s
        self._leave = leave
        self._watchdog: threading.Timer | None = None

    async def start(self) -> None:
        """Listen for the notice."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._on_notice)

    def _on_notice(self) -> None:
        log.warning("spot_notice", extra={"grace_s": self._grace_s})
        self._leave()

    async def stop(self) -> None:
        """Begin to count: a daemon thread, because the event loop may be what hangs."""
        self._watchdog = threading.Timer(
            self._grace_s * (1 - _MARGIN),
            leave_by_force,
            (f"a step or an upload took longer than GRPO_TRAINER_SPOT_GRACE_S ({self._grace_s:g})",),
        )
        self._watchdog.daemon = True
        self._watchdog.start()

    def ready(self) -> str | None:
        """Always."""
        return None


def leave_by_force(why: str) -> None:
    """End the process now: what it computes cannot be ended in any other way."""
    log.error("left_by_force", extra={"why": why})
    logging.shutdown()
    os._exit(EXIT_LEFT_BY_FORCE)
