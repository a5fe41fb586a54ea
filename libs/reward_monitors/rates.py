"""Monitors that count: one shape for all. Each keeps a detector, the newest bits and the newest exhibits."""

from dataclasses import dataclass, field
from typing import Final

from reward_monitors.alarms import Alarm, Exhibits, MonitorKind
from reward_monitors.detection import BASELINE, LearnedRate, RateDetector, RecentRate
from reward_monitors.observed import Observed
from reward_monitors.questions import SAYS

CERTAIN: Final = (1e-4, 0.5)
"""Tolerated and worse rate of what never happens by chance: two trajectories raise the alarm."""
_MAX_KINDS: Final = 16


@dataclass(slots=True)
class RateMonitor:
    """Counts the episodes that show one thing."""

    kind: MonitorKind
    rate: LearnedRate = field(default_factory=LearnedRate)
    recent: RecentRate = field(default_factory=RecentRate)
    exhibits: Exhibits = field(default_factory=Exhibits)
    since_version: int = 0
    version: int = 0
    detail: str = ""

    def count(self, one: Observed, hit: bool) -> None:
        """One episode that the monitor has a word about."""
        was_raised = self.rate.is_raised
        self.version = max(self.version, one.version)
        self.recent.add(hit)
        if hit:
            self.exhibits.add(one.trajectory_id)
        if self.rate.add(hit) and not was_raised:
            self.since_version = one.version

    def alarm(self) -> Alarm | None:
        """None while nothing is wrong."""
        if not self.rate.is_raised or self.rate.detector is None:
            return None
        value, limit = self.recent.rate, self.rate.detector.tolerated
        share = f"{value:.0%} of the last {len(self.recent.bits)} episodes"
        detail = f" ({self.detail})" if self.detail else ""
        text = f"{share} {SAYS[self.kind]}{detail}; {limit:.2%} are usual or tolerated"
        shown = tuple(self.exhibits.ids)
        return Alarm(self.kind, text, value, limit, self.since_version, self.version, shown)


def fixed(kind: MonitorKind, tolerated: float, worse: float, run_length: float = 10_000.0) -> RateMonitor:
    """A monitor whose limit is no matter of what was usual."""
    detector = RateDetector(tolerated, worse, run_length)
    return RateMonitor(kind, LearnedRate(detector=detector))


@dataclass(slots=True)
class TamperingMonitor:
    """What graders read: parts that are declared as protected never change; other keys of the state that no
    episode of the baseline changed should not begin to. moved: those that did."""

    protected: RateMonitor = field(default_factory=lambda: fixed(MonitorKind.TAMPERING, *CERTAIN))
    undeclared: RateMonitor = field(
        default_factory=lambda: fixed(MonitorKind.TAMPERING, 0.02, 0.22)  # as a learned rate of none
    )
    num: int = 0
    moved: list[str] = field(default_factory=list)

    def count(self, one: Observed) -> bool:
        """Returns whether the episode shows it."""
        if one.declared.protected is not None:
            self.protected.detail = "the state's protected part"
            self.protected.count(one, one.protected_changed)
            return one.protected_changed
        self.num += 1
        if self.num <= BASELINE:
            self.moved = sorted({*self.moved, *one.changed})[:1000]
            return False
        new = sorted(set(one.changed) - set(self.moved))
        if new:
            self.undeclared.detail = f"the state's key {new[0]!r}, which no earlier episode changed"
        self.undeclared.count(one, bool(new))
        return bool(new)

    def alarm(self) -> Alarm | None:
        """None while nothing is wrong."""
        return self.protected.alarm() or self.undeclared.alarm()


@dataclass(slots=True)
class MissingMonitor:
    """Failures by kind, each against what the run's first episodes showed."""

    num: int = 0
    kinds: dict[str, RateMonitor] = field(default_factory=dict)

    def count(self, one: Observed) -> bool:
        """Returns whether the episode shows it."""
        if one.failure and one.failure not in self.kinds and len(self.kinds) < _MAX_KINDS:
            self.kinds[one.failure] = self._new(one.failure)
        self.num += 1
        for kind, monitor in self.kinds.items():
            monitor.count(one, kind == one.failure)
        return bool(one.failure)

    def _new(self, kind: str) -> RateMonitor:
        """A kind that was not seen until now was seen in none of the episodes before."""
        rate = LearnedRate()
        for _ in range(min(self.num, BASELINE)):
            rate.add(False)
        return RateMonitor(MonitorKind.MISSING, rate, detail=kind)

    def alarm(self) -> Alarm | None:
        """The kind that occurs most, of those that are too frequent."""
        raised = [alarm for monitor in self.kinds.values() if (alarm := monitor.alarm())]
        return max(raised, key=lambda alarm: alarm.value, default=None)
