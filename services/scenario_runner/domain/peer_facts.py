"""What other services say about a run, for `why` and for the planner."""

from collections.abc import Sequence
from dataclasses import dataclass


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
