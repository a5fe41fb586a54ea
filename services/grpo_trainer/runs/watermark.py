"""The replay watermark of all sessions: no session stores a later cursor."""

from __future__ import annotations


class ReplayWatermark:
    """`handled`: sequence of the newest fact that reached its session. Until the first state of a run is
    durable, no cursor may pass the run's submission: only a replay from before it finds the run again.
    """

    def __init__(self, handled: int = 0) -> None:
        self.handled = handled
        self._opening: dict[str, int] = {}
        self._opened: set[str] = set()

    def opening(self, run_id: str, sequence: int) -> None:
        """A run was submitted at `sequence`. Nothing changes where it has a durable state already."""
        if run_id not in self._opened:
            self._opening[run_id] = sequence

    def opened(self, run_id: str) -> None:
        """The run has a durable state, or will never have one."""
        self._opening.pop(run_id, None)
        self._opened.add(run_id)

    def closed(self, run_id: str) -> None:
        """The run is over: nothing is kept of it."""
        self._opening.pop(run_id, None)
        self._opened.discard(run_id)

    @property
    def bound(self) -> int:
        """Largest cursor that loses nothing of other sessions."""
        return min([self.handled, *(sequence - 1 for sequence in self._opening.values())])
