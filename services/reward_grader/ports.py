"""What grading needs from the outside, and how the outside may fail: one class per reaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from reward_grader.domain import Grade, GradingTask, Transcript


class GradingError(Exception):
    """Base of what the ports raise; the text says thing, value and way out."""


class Unavailable(GradingError):
    """Something is away for a while; `waiting_for` names it. The same call may succeed later."""

    def __init__(self, waiting_for: str, delay_s: float = 2.0) -> None:
        super().__init__(waiting_for)
        self.waiting_for = waiting_for
        self.delay_s = delay_s


class EnvironmentAway(Unavailable):
    """The replica that holds the lease does not answer: restarting, or gone with its environments."""


class EpisodeBroken(GradingError):
    """This trajectory cannot be graded; `kind` is the word of `episode.failed`."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Environments(Protocol):
    """The environment processes that can still say how an episode went."""

    async def grade(self, task: GradingTask, transcript: Transcript) -> Grade:
        """The environment's own reward, the same each time. Raises EnvironmentAway, EpisodeBroken."""

    async def close(self, task: GradingTask) -> None:
        """Let the process go. Never raises: a lease that cannot be closed lapses by itself."""


class Transcripts(Protocol):
    """Stored records."""

    async def read(self, task: GradingTask) -> Transcript:
        """The verified record. Raises Unavailable, EpisodeBroken."""


@dataclass(frozen=True, slots=True)
class ExtraGrader:
    """A grader of the operator, beside the environment's: async, 0..1."""

    name: str
    weight: float
    grade: Callable[[Transcript], Awaitable[float]]
