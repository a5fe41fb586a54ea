"""What other services say about a run, for `why` and for the planner."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

_MAX_DEADLINES: Final = 10
_NOT_ASKED: Final = timedelta(seconds=60)
"""Deadlines of an episode for which a grader that works may let it wait."""


@dataclass(frozen=True, slots=True)
class EngineFact:
    """A live engine lease of the run's model."""

    engine_id: str
    channel: str
    version: int
    held_versions: Sequence[int]
    is_serving: bool
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DurableFact:
    """A consumer on the bus. num_pulling: pull requests that wait at the server."""

    num_pending: int
    num_unacknowledged: int
    num_pulling: int
    is_missing: bool = False
    """The bus answers and has no such consumer."""

    @property
    def is_abandoned(self) -> bool:
        """No process pulls, and none works on anything of it."""
        return self.num_pulling == 0 and self.num_unacknowledged == 0

    @property
    def is_unasked(self) -> bool:
        """It exists, and no process asks for more of it."""
        return not self.is_missing and self.num_pulling == 0

    @property
    def is_left_alone(self) -> bool:
        """It exists, no process pulls, and none works on anything of it."""
        return self.is_unasked and self.is_abandoned

    @property
    def is_idle(self) -> bool:
        """Nothing waits in it, and nothing of it is worked on."""
        return not self.is_missing and self.num_pending == 0 and self.num_unacknowledged == 0


@dataclass(frozen=True, slots=True)
class SessionFact:
    """What the trainer says about the run."""

    state: str
    failure: str
    waiting_s: float
    groups_ready: int
    alarms: Sequence[str] = ()
    """What its measurements warn of, one sentence each."""
    holder: str = ""
    """The trainer process that holds the run; empty where none does."""
    step: int = 0
    version: int = 0
    failure_kind: str = ""
    behind: str = ""
    """The run of the same model that the trainer has open before it; empty where there is none."""
    groups_publishing: int = 0
    """Of the step that it stores, before it announces it."""
    process_weight: float = 1.0
    """How much rewards of the process counted in its newest step."""

    @property
    def num_held(self) -> int:
        """Groups that the trainer has and has not settled."""
        return self.groups_ready + self.groups_publishing


NOT_STARTED: Final = SessionFact("not started yet", "", 0.0, 0)
"""No trainer knows the run."""


@dataclass(frozen=True, slots=True)
class GraderFact:
    """What waits for the grader. recorded: episodes that were played, and since when. is_away: no grader
    pulls, and none works."""

    recorded: Mapping[str, datetime] = field(default_factory=dict)
    is_away: bool = False


class GraderBacklog:
    """Decides which of the played episodes go on waiting for the grader beyond their deadline."""

    def __init__(self) -> None:
        self._working_since: datetime | None = None
        self._unanswered_since: datetime | None = None
        self._unanswered_last = datetime.min.replace(tzinfo=UTC)

    def waiting(
        self, found: GraderFact | None, overdue: Collection[str], deadline: timedelta, now: datetime
    ) -> frozenset[str]:
        """All of them while no grader works, and for ten deadlines from then on; then those that were played
        in the last ten: a grader that works has lost the others. found: None while ledger or bus does not
        answer; then whatever is overdue waits, for ten deadlines of questions without an answer. They are
        asked only while an episode is overdue: after a pause the count begins anew."""
        if found is None:
            is_new = now - self._unanswered_last > _NOT_ASKED
            self._unanswered_last = now
            self._unanswered_since = now if is_new else self._unanswered_since or now
            is_over = now - self._unanswered_since > _MAX_DEADLINES * deadline
            return frozenset() if is_over else frozenset(overdue)
        self._unanswered_since = None
        if found.is_away:
            self._working_since = None
            return frozenset(found.recorded)
        self._working_since = self._working_since or now
        before = now - _MAX_DEADLINES * deadline
        if self._working_since > before:
            return frozenset(found.recorded)
        return frozenset(episode for episode, since in found.recorded.items() if since > before)
