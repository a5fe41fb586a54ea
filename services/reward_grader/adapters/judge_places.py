"""Who may ask a judge now: one that is slow or away keeps few of a grader's slots, so that the records of
scenarios that do not ask it are graded meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from upcycle.errors import InfrastructureError, Unavailable

AWAY_S: Final = 5.0
"""How long a judge that failed a question is asked no other one."""
MAX_PAUSE_S: Final = 30.0
"""Below what an environment's lease is lengthened by with each call."""
_FIRST_PAUSE_S: Final = 1.0
_EACH_S: Final = 0.02
"""Between two records that come back, while it is not known how long the judge takes for an answer."""
_NEWEST: Final = 0.2
"""Weight of the newest answer in the mean of how long they take."""


class NotAsked(Unavailable):
    """A question that was not sent: it waits for a place, or its judge failed others. away_s: how long that
    judge has answered no question; 0 for one that answers."""

    def __init__(self, waiting_for: str, retry_after_s: float, away_s: float) -> None:
        super().__init__(waiting_for, retry_after_s)
        self.away_s = away_s


@dataclass(slots=True)
class FreePlaces:
    """Of all judges together."""

    number: int


@dataclass(frozen=True, slots=True)
class _Away:
    since: float
    until: float
    waiting_for: str


class JudgePlaces:
    """The places at one judge. One that failed is away: after a while one question at a time finds out
    whether it is back."""

    def __init__(self, shown: str, at_once: int, free: FreePlaces, *, now: Callable[[], float]) -> None:
        self._shown = shown
        self._at_once = at_once
        self._free = free
        self._now = now
        self._num_asked = 0
        self._away: _Away | None = None
        self._answer_s: float | None = None
        self._turn_at = 0.0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Around one question. Raises NotAsked, and what the body raises: Unavailable means that the judge is
        away."""
        began = self._now()
        self._refuse(began)
        self._num_asked += 1
        self._free.number -= 1
        try:
            yield
        except Unavailable as error:
            now = self._now()
            since = now if self._away is None else self._away.since
            self._away = _Away(since, now + AWAY_S, error.waiting_for)
            raise
        except InfrastructureError:  # it answers, though this question with nothing of use
            self._answered(self._now() - began)
            raise
        else:
            self._answered(self._now() - began)
        finally:
            self._num_asked -= 1
            self._free.number += 1

    def _refuse(self, now: float) -> None:
        away = self._away
        if away is not None and (now < away.until or self._num_asked):
            pause_s = self._pause_s(now, max(away.until - now, _FIRST_PAUSE_S), _EACH_S)
            raise NotAsked(away.waiting_for, pause_s, now - away.since)
        if self._num_asked < self._at_once and self._free.number > 0:
            return
        each_s = _EACH_S if self._answer_s is None else self._answer_s / self._at_once / 2
        pause_s = self._pause_s(now, _FIRST_PAUSE_S, each_s)
        raise NotAsked(f"a place at judge {self._shown}, which answers {self._num_asked} now", pause_s, 0.0)

    def _answered(self, taken_s: float) -> None:
        self._away = None
        before = taken_s if self._answer_s is None else self._answer_s
        self._answer_s = before + _NEWEST * (taken_s - before)

    def _pause_s(self, now: float, first_s: float, each_s: float) -> float:
        """Each that is refused comes back a little after the one before, so that thousands of them leave room
        for other records."""
        self._turn_at = min(max(self._turn_at + each_s, now + first_s), now + MAX_PAUSE_S)
        return self._turn_at - now
