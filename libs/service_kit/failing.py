"""What a loop fails at, try after try. A Worker shows it in /readyz; before, only the log said so.

`until_stopped` notes each round and `one_piece` each piece of one, in the FailingWork of the Worker that runs
the loop. A loop without a Worker (a test's, the simulator's) notes nothing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from service_kit.component import ALARM
from upcycle.errors import Unavailable

ALARM_AFTER_S: Final = 60.0
_MIN_TRIES: Final = 2
"""A loop that tries once an hour has failed for a minute after one try, and may work at the next."""
_MAX_NAMED: Final = 3
_MAX_TEXT: Final = 300
_WHOLE_ROUND: Final = ""


@dataclass(slots=True)
class _Failure:
    since_s: float
    why: str
    tries: int = 0
    of: str = ""


class FailingWork:
    """Of one loop: which pieces failed at their last try, since when, and why."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        """now: seconds that only grow."""
        self._now = now
        self._failures: dict[str, _Failure] = {}
        self._failed: set[str] = set()

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around one round of the loop. One that ends without Unavailable did all of its work."""
        self._failed.clear()
        try:
            yield
        except Unavailable as error:
            if not self._failed:
                self._note(_WHOLE_ROUND, "", error)
            self._keep(self._failed)
            raise
        self._keep(set())

    @contextmanager
    def piece(self, name: str, of: str = "") -> Iterator[None]:
        """Around one piece of a round. of: the id of the run, or of what else it is done for."""
        try:
            yield
        except Unavailable as error:
            self._note(name, of, error)
            raise
        self._failures.pop(name, None)

    def alarm(self) -> str | None:
        """A reason of `ready` once something has failed for a minute."""
        lasting = [
            f"{name or 'each try'} fails, for {self._now() - one.since_s:.0f} s, {one.tries} tries: {one.why}"
            for name, one in self._lasting()
        ]
        rest = len(lasting) - _MAX_NAMED
        more = f"; and {rest} more" if rest > 0 else ""
        return f"{ALARM}{'; '.join(lasting[:_MAX_NAMED])}{more}" if lasting else None

    def of(self, subject: str) -> Sequence[str]:
        """What has failed for a minute of the work for one run, or other id; one sentence each."""
        return [f"{name} fails: {one.why}" for name, one in self._lasting() if one.of == subject]

    def _lasting(self) -> list[tuple[str, _Failure]]:
        since_s = self._now() - ALARM_AFTER_S
        oldest_first = sorted(self._failures.items(), key=lambda item: item[1].since_s)
        return [(n, one) for n, one in oldest_first if one.since_s <= since_s and one.tries >= _MIN_TRIES]

    def _note(self, name: str, of: str, error: Unavailable) -> None:
        self._failed.add(name)
        failure = self._failures.setdefault(name, _Failure(self._now(), "", of=of))
        failure.tries += 1
        failure.why = str(error).removeprefix(f"{name}: ")[:_MAX_TEXT]

    def _keep(self, names: set[str]) -> None:
        """Others were done, or are asked for no more."""
        for name in self._failures.keys() - names:
            del self._failures[name]


FAILING_WORK: Final[ContextVar[FailingWork]] = ContextVar("failing_work")
"""Of the Worker that runs this task."""


def failing_work() -> FailingWork:
    """Of the Worker that runs this task; one that is thrown away where there is none."""
    return FAILING_WORK.get(FailingWork())
