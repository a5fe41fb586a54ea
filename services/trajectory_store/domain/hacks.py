"""Alarms of the monitors as they are kept, and what people say about trajectories."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from reward_monitors import Alarm, Seen
from trajectory_store.domain.ledger import Episode

HACK: Final = "reward hack: "
"""Beginning of the reason of a quarantine for which the body is sound: it is shown, and never trains."""


@dataclass(frozen=True, slots=True)
class KeptAlarm:
    """One alarm of a run, of each kind at most one. Moments are microseconds since 1970; cleared and
    dismissed: None while it is not."""

    run_id: str
    model: str
    alarm: Alarm
    raised_us: int
    cleared_us: int | None = None
    dismissed_us: int | None = None
    dismissed_by: str = ""
    note: str = ""

    @property
    def is_open(self) -> bool:
        """It blocks promotions of its run."""
        return self.cleared_us is None and self.dismissed_us is None


def followed(
    known: Mapping[str, KeptAlarm], raised: Iterable[Alarm], run_id: str, model: str, now_us: int
) -> list[KeptAlarm]:
    """The alarms of a run that changed, after its monitors were asked. One that is raised again after it was
    cleared is a new one, which is not dismissed."""
    now_raised = {alarm.kind.value: alarm for alarm in raised}
    changed = []
    for kind, alarm in now_raised.items():
        before = known.get(kind)
        if before is None or before.cleared_us is not None:
            changed.append(KeptAlarm(run_id, model, alarm, now_us))
        elif before.alarm != alarm:
            changed.append(replace(before, alarm=alarm))
    for kind, before in known.items():
        if kind not in now_raised and before.cleared_us is None:
            changed.append(replace(before, cleared_us=now_us))
    return changed


class Verdict(IntEnum):
    """What a person says about a trajectory; numbers as on the wire."""

    SOLVED = 1
    HACKED = 2
    UNCLEAR = 3


@dataclass(frozen=True, slots=True)
class Review:
    """One person's verdict."""

    episode_id: str
    run_id: str
    verdict: Verdict
    reviewer: str
    note: str
    reviewed_us: int


@dataclass(frozen=True, slots=True)
class SignatureBatch:
    """Graded episodes of a run with one signature, without what is quarantined. monitors: for which they are
    exhibits. best: episode id of one with the highest reward."""

    signature: str
    monitors: tuple[str, ...]
    num_episodes: int
    highest_reward: float
    mean_reward: float
    best: str


@dataclass(frozen=True, slots=True)
class SeenEpisode:
    """An episode and what the monitors said of it."""

    episode: Episode
    seen: Seen
