"""Which bodies and rows may go: old, settled, and referred to by nothing. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from retention import Reference
from trajectory_store.domain.facts import LedgerState

_IN_DOUBT: Final = "facts that contradict each other"


class Removable(StrEnum):
    """What the store removes. BODIES: what was said, with its tokens. EPISODES: the rows of episodes that
    have no body, or none any more; the counts of their runs stay."""

    BODIES = "bodies"
    EPISODES = "episodes"


@dataclass(frozen=True, slots=True)
class OldRow:
    """A settled episode that is old enough. at_us: of its body, when it was recorded; of its row, when it
    was requested."""

    episode_id: str
    run_id: str
    state: LedgerState
    trained_by_run: str
    at_us: int
    size_bytes: int
    tenant: str
    model: str
    is_doubtful: bool = False
    """Its facts deny each other, or two steps claim it: a promise was broken, and this is what shows how."""

    @property
    def runs(self) -> set[str]:
        """Whose references decide: its own run, and the one that trained on it."""
        return {self.run_id, self.trained_by_run} - {""}


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """None: for ever. bodies_bytes: in all; beyond it the oldest bodies go, younger than `bodies` too."""

    bodies: timedelta | None = None
    episodes: timedelta | None = None
    bodies_bytes: int | None = None

    def age_of(self, what: Removable) -> timedelta | None:
        """After which they go."""
        return self.bodies if what is Removable.BODIES else self.episodes


def reasons_to_keep(rows: Iterable[OldRow], references: Sequence[Reference]) -> dict[str, str]:
    """By id of each row that is needed: why."""
    whole = {one.run_id: one.why for one in references if not one.only_trained}
    trained = {one.run_id: one.why for one in references if one.only_trained}
    kept: dict[str, str] = {}
    for row in rows:
        reason = _reason(row, whole, trained)
        if reason:
            kept[row.episode_id] = reason
    return kept


def _reason(row: OldRow, whole: Mapping[str, str], trained: Mapping[str, str]) -> str:
    """Of a run that is needed as a whole each episode stays, and each on which such a run trained. A gradient
    that was taken counts whatever state the row is in."""
    for run_id in sorted(row.runs):
        if run_id in whole:
            return whole[run_id]
    return trained.get(row.trained_by_run, "") or (_IN_DOUBT if row.is_doubtful else "")
