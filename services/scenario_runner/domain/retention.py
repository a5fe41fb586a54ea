"""What stays of a run whose groups and episodes were removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from scenario_runner.domain.runs import Counts
from scenario_runner.domain.source_groups import SourceTally


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The totals of a run at its removal, and the policy by which it went."""

    counts: Counts
    tallies: Sequence[SourceTally]
    why: str


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that is over. is_drawn_from: by a run that is over too, and was not removed."""

    run_id: str
    finished_at: datetime
    model: str
    is_drawn_from: bool = False


class Progress(Enum):
    """OVER: too short a time ago for every service to have read of it; LONG_OVER: before that. HELD: that,
    and an interactive session trained on it so short a time ago that no checkpoint may say so yet."""

    OPEN = auto()
    OVER = auto()
    LONG_OVER = auto()
    HELD = auto()
