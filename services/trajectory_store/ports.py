"""What the store's use cases need from the outside, and how it may fail: one class per reaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trajectory_store.domain import Episode, Fact, Filter, Ledger, PageKey


class StoreError(Exception):
    """Base of what the ports raise; the text says thing, value and way out."""


class Unavailable(StoreError):
    """A database or object store is away or full for a while; `waiting_for` names it."""

    def __init__(self, waiting_for: str, delay_s: float = 2.0) -> None:
        super().__init__(waiting_for)
        self.waiting_for = waiting_for
        self.delay_s = delay_s

    def __str__(self) -> str:
        return f"waiting for {self.waiting_for}; try again in {self.delay_s:g} s"


class UnknownTrajectory(StoreError):
    """No episode of that id was ever requested, or none with a recorded trajectory."""


class BodyCorrupt(StoreError):
    """The stored bytes are missing, are not what the record promised, or are no trajectory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A trajectory as it is after a change, and the change's position in the feed."""

    position: int
    episode: Episode


class Index(Protocol):
    """The projection. Each call is one transaction; all raise Unavailable."""

    async def project(self, facts: Sequence[Fact]) -> int:
        """Fold facts, in order, into rows and counters. Returns how many rows changed."""

    async def find(self, episode_id: str) -> Episode | None:
        """One row."""

    async def page(self, wanted: Filter, after: PageKey | None, limit: int) -> list[Episode]:
        """Recorded trajectories, newest first, beginning after a key."""

    async def position(self) -> int:
        """Position of the newest change."""

    async def changes(self, wanted: Filter, after: int, limit: int) -> list[Change]:
        """Recorded trajectories that changed after a position, oldest change first."""

    async def ledger(self, run_id: str, num_unsettled: int) -> Ledger:
        """The equation of a run ("" for all), and the oldest unsettled episodes by name."""

    async def unchecked(self, limit: int) -> list[Episode]:
        """Recorded trajectories whose bodies nobody has looked at, oldest first."""

    async def checked(self, episode_ids: Sequence[str]) -> None:
        """Their bodies are good."""

    async def quarantine(self, episode: Episode, reason: str) -> None:
        """Mark a trajectory whose body cannot be used, and announce it with the same transaction."""


class Bodies(Protocol):
    """Stored bodies."""

    async def read(self, episode: Episode) -> Any:
        """The verified body, in its wire form. Raises BodyCorrupt, Unavailable."""
