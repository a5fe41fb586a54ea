"""Logs what work waits for, once for many pieces of work that wait for the same."""

import logging
import time


class WaitLog:
    """Logs `event` with what is waited for, at most once per `every_s` seconds for the same text."""

    def __init__(
        self, log: logging.Logger, event: str, *, every_s: float = 10.0, max_texts: int = 100
    ) -> None:
        self._log = log
        self._event = event
        self._every_s = every_s
        self._max_texts = max_texts
        self._said_at: dict[str, float] = {}

    def say(self, waiting_for: str) -> None:
        """Log a warning unless the same was logged a moment ago."""
        now = time.monotonic()
        if now - self._said_at.get(waiting_for, -self._every_s) < self._every_s:
            return
        if len(self._said_at) >= self._max_texts:
            self._said_at.clear()
        self._said_at[waiting_for] = now
        self._log.warning(self._event, extra={"waiting_for": waiting_for})
