"""What may be asked of the index, and what it answers beside episodes."""

from dataclasses import dataclass

from episodes import Purpose
from trajectory_store.domain.facts import LedgerState
from trajectory_store.domain.ledger import Episode
from upcycle.session_labels import Labels


@dataclass(frozen=True, slots=True)
class TrajectoryFilter:
    """Which trajectories; None and empty mean any, but that CLIENT_GRADED must be asked for: nothing on the
    platform checked those rewards."""

    run_id: str = ""
    model: str = ""
    group_id: str = ""
    task_slug: str = ""
    purpose: Purpose | None = None
    min_reward: float | None = None
    success: bool | None = None
    state: LedgerState | None = None
    family: str = ""
    max_reward: float | None = None
    failure_kind: str = ""
    version: int | None = None
    recorded_sessions: bool = False
    """Sessions that the gateway recorded alone."""
    session_group: str = ""
    """Recorded sessions whose reward named this group."""
    labels: Labels = ()
    """Recorded sessions that have all of these."""
    graded_since_us: int | None = None
    graded_before_us: int | None = None


@dataclass(frozen=True, slots=True)
class PageKey:
    """Where a page ended: newest first, ties by id."""

    recorded_us: int
    episode_id: str


@dataclass(frozen=True, slots=True)
class FeedChange:
    """A trajectory as it is after a change, and the change's position in the feed."""

    position: int
    episode: Episode
