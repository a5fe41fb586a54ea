"""How idle the slots of a worker are, weighted by time: the number that samplers and learners share."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

WINDOW_S: Final = 30.0


class SlotMeter:
    """Idle share of `slots` over the last `window_s`, weighted by time. One event loop, no locks."""

    def __init__(
        self, slots: int, *, window_s: float = WINDOW_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._window_s = window_s
        self._now = now
        self._began = now()
        self._busy = 0
        self._marks: deque[tuple[float, float]] = deque([(self._began, 0.0)])
        """(moment, busy slot-seconds until then), one per change, the first at or before the window."""
        self._last = (self._began, 0.0)

    @contextmanager
    def playing(self) -> Iterator[None]:
        """One slot is busy."""
        self._change(+1)
        try:
            yield
        finally:
            self._change(-1)

    def idle_ratio(self) -> float:
        """0 where every slot played all the time, 1 where none did."""
        now = self._now()
        start = max(self._began, now - self._window_s)
        if now <= start:
            return 1.0 - self._busy / self._slots
        busy_s = self._integral(now) - self._integral_at(start)
        return min(1.0, max(0.0, 1.0 - busy_s / (self._slots * (now - start))))

    def _change(self, by: int) -> None:
        now = self._now()
        self._last = (now, self._integral(now))
        self._marks.append(self._last)
        self._busy += by
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()

    def _integral(self, moment: float) -> float:
        """Busy slot-seconds until a moment that is not before the last change."""
        at, busy_s = self._last
        return busy_s + self._busy * (moment - at)

    def _integral_at(self, moment: float) -> float:
        """Busy slot-seconds until a moment within the window: between two changes they grow evenly."""
        before = self._marks[0]
        for mark in self._marks:
            if mark[0] > moment:
                share = (moment - before[0]) / (mark[0] - before[0])
                return before[1] + max(0.0, share) * (mark[1] - before[1])
            before = mark
        return self._integral(moment) if moment >= self._last[0] else before[1]
