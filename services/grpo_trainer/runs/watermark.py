"""How far the facts were handled, over all sessions: what bounds every cursor."""

from __future__ import annotations


class ReplayWatermark:
    """`handled`: newest fact that reached its session. A run whose first state is not durable holds
    everyone back, because only a replay from before its submission would find it again."""

    def __init__(self, handled: int = 0) -> None:
        self.handled = handled
        self._opening: dict[str, int] = {}

    def opening(self, run_id: str, sequence: int) -> None:
        """A run was submitted at `sequence`, and nothing durable says so."""
        self._opening[run_id] = sequence

    def opened(self, run_id: str) -> None:
        """The run has a durable state, or will never have one."""
        self._opening.pop(run_id, None)

    @property
    def bound(self) -> int:
        """Largest cursor that loses nothing of other sessions."""
        return min([self.handled, *(sequence - 1 for sequence in self._opening.values())])
