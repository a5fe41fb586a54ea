"""Alarms: what a monitor saw, with its numbers and the trajectories that show it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_SHOWN: Final = 8
"""Trajectories that an alarm names: the newest."""


class MonitorKind(StrEnum):
    """The monitors, in the order in which alarms are listed."""

    SHADOW = "shadow_disagrees"
    DRIFT = "component_drift"
    ANSWERS = "answer_concentration"
    CANDIDATES = "several_candidates"
    UNEARNED = "unearned_success"
    TRUNCATED = "truncated_success"
    IMPOSSIBLE = "impossible_solved"
    LEAK = "leak_shown"
    TAMPERING = "state_tampered"
    MISSING = "missing_rewards"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Raised, and not cleared. value: what was measured; limit: what it is compared with; since_version: the
    policy version whose episode raised it; version: the newest seen. trajectories: newest last."""

    kind: MonitorKind
    text: str
    value: float
    limit: float
    since_version: int
    version: int
    trajectories: tuple[str, ...]


@dataclass(slots=True)
class Exhibits:
    """The newest trajectories that show something; their number is bounded."""

    ids: list[str] = field(default_factory=list)

    def add(self, trajectory_id: str) -> None:
        """Keep it; the oldest goes."""
        self.ids = [*deque((one for one in self.ids if one != trajectory_id), MAX_SHOWN - 1), trajectory_id]

    def replace(self, trajectory_ids: Iterable[str]) -> None:
        """Show these instead."""
        self.ids = list(trajectory_ids)[-MAX_SHOWN:]
