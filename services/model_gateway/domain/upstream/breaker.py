"""When a provider is not asked, and when it is asked again: a circuit breaker and a budget of retries."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from model_gateway.domain.upstream.errors import UpstreamPaused
from model_gateway.domain.upstream.providers import Provider

_FIRST_RETRIES: Final = 3.0
"""That a provider gets before any request has paid for one."""
_MOST_SAVED: Final = 20.0


class Circuit(StrEnum):
    """Closed: requests go. Open: none does. Half open: one does, and decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Of one provider. Each `enter` is followed by one of `succeeded`, `failed`, `left`."""

    def __init__(self, provider: Provider, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._provider = provider
        self._monotonic = monotonic
        self._failures = 0
        self._open_until: float | None = None
        self._has_probe = False

    def state(self) -> Circuit:
        """As it is now."""
        if self._open_until is None:
            return Circuit.CLOSED
        return Circuit.OPEN if self._monotonic() < self._open_until else Circuit.HALF_OPEN

    def enter(self) -> bool:
        """A request is about to be sent; whether it is the one that probes. Raises UpstreamPaused."""
        state = self.state()
        if state is Circuit.CLOSED:
            return False
        if state is Circuit.HALF_OPEN and not self._has_probe:
            self._has_probe = True
            return True
        left_s = max((self._open_until or 0.0) - self._monotonic(), 1.0)
        raise UpstreamPaused(
            f"provider {self._provider.name!r} failed {self._provider.limits.opens_after} times in a row and "
            f"is not asked now; try again in {left_s:.0f} s",
            retry_after_s=left_s,
        )

    def succeeded(self, is_probe: bool) -> None:
        """The provider answered. What was sent before it was paused says nothing new."""
        if is_probe or self._open_until is None:
            self._failures, self._open_until = 0, None
        self._left(is_probe)

    def failed(self, is_probe: bool) -> None:
        """It did not."""
        self._failures += 1
        if is_probe or (self._open_until is None and self._failures >= self._provider.limits.opens_after):
            self._open_until = self._monotonic() + self._provider.limits.open_s
        self._left(is_probe)

    def left(self, is_probe: bool) -> None:
        """The client left before anything was known: the next request may probe."""
        self._left(is_probe)

    def _left(self, is_probe: bool) -> None:
        if is_probe:
            self._has_probe = False


class RetryBudget:
    """Requests pay for tries: a provider that fails all of them gets `share` more load and not twice it."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = _FIRST_RETRIES if share > 0 else 0.0

    def request(self) -> None:
        """One more was asked of the provider."""
        self._saved = min(self._saved + self._share, max(_MOST_SAVED, self._saved))

    def take(self) -> bool:
        """Whether one more try may be sent."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
