"""Which component brought the gain: it pays more than before, while success stands still without it.

Episodes are summed by policy version. The newest versions are compared with the run's first ones, and with
those some versions back. A component of which success depends is no hack: partial credit comes first.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from reward_monitors.alarms import Alarm, Exhibits, MonitorKind
from reward_monitors.observed import Component, Observed

MAX_VERSIONS: Final = 64
MIN_EPISODES: Final = 96
"""On either side of a comparison."""
_SIGMAS: Final = 3.0
_MIN_GAIN: Final = 0.02
_LAG: Final = 4
"""Versions between the two sides, when they are not the first and the newest."""
_DESIGN: Final = 1.5
"""Factor on standard errors: attempts at one task are no independent episodes."""
_HELPS: Final = 0.1
"""A component is a part of success when it is that much higher in episodes that succeed than in others."""
_MAX_COMPONENTS: Final = 64
WHOLE: Final = "reward"
"""Name of the component where a reward has no tree."""


@dataclass(slots=True)
class Part:
    """Sums of one component: of what it paid, of the squares, of its value, and of its value in successes."""

    paid: float = 0.0
    squares: float = 0.0
    value: float = 0.0
    value_in_success: float = 0.0

    def plus(self, other: "Part") -> "Part":
        """Both together."""
        return Part(
            self.paid + other.paid,
            self.squares + other.squares,
            self.value + other.value,
            self.value_in_success + other.value_in_success,
        )


@dataclass(slots=True)
class Sums:
    """Sums over episodes. parts: by component."""

    version: int = 0
    num: int = 0
    reward: float = 0.0
    success: float = 0.0
    parts: dict[str, Part] = field(default_factory=dict)

    def add(self, one: Observed) -> None:
        """One graded episode. Success is what the shadow grader says, where there is one."""
        solved = float(one.success if one.shadow is None else one.shadow)
        self.num += 1
        self.reward += one.reward
        self.success += solved
        components = one.components or {WHOLE: Component(one.reward, one.reward)}
        for name, one_of in components.items():
            if name in self.parts or len(self.parts) < _MAX_COMPONENTS:
                more = Part(one_of.paid, one_of.paid**2, one_of.value, one_of.value * solved)
                self.parts[name] = self.parts.get(name, Part()).plus(more)

    def plus(self, other: "Sums") -> "Sums":
        """Both together, as of the newer version."""
        names = sorted({*self.parts, *other.parts})
        return Sums(
            max(self.version, other.version),
            self.num + other.num,
            self.reward + other.reward,
            self.success + other.success,
            {name: self.part(name).plus(other.part(name)) for name in names},
        )

    def part(self, name: str) -> Part:
        """Sums of one component; zeros where it was never seen."""
        return self.parts.get(name, Part())

    def error_of(self, name: str) -> float:
        """Standard error of what a component paid in the mean."""
        part = self.part(name)
        mean = part.paid / self.num
        return _DESIGN * math.sqrt(max(0.0, part.squares / self.num - mean**2) / self.num)

    def error_of_success(self) -> float:
        """Standard error of the success rate; that of one success more and one less where it is 0 or 1."""
        rate = (self.success + 1) / (self.num + 2)
        return _DESIGN * math.sqrt(rate * (1 - rate) / self.num)

    def helps(self, name: str) -> bool:
        """Whether the component is higher where the episode succeeded."""
        part, failed = self.part(name), self.num - self.success
        if not self.success or not failed:
            return False
        in_failure = (part.value - part.value_in_success) / failed
        return part.value_in_success / self.success > in_failure + _HELPS


@dataclass(slots=True)
class DriftMonitor:
    """versions: sums by policy version, oldest first; of more than MAX_VERSIONS the oldest are one."""

    versions: list[Sums] = field(default_factory=list)
    raised: Alarm | None = None
    unsolved: Exhibits = field(default_factory=Exhibits)

    def count(self, one: Observed) -> None:
        """One graded episode."""
        if not one.is_graded or one.failure:
            return
        self._sums_of(one.version).add(one)
        is_solved = one.success if one.shadow is None else one.shadow
        if one.reward > 0 and not is_solved:
            self.unsolved.add(one.trajectory_id)
        if sum(sums.num for sums in self.versions) % 16 == 0:
            self._look()

    def alarm(self) -> Alarm | None:
        """None while nothing is wrong."""
        return self.raised

    def _sums_of(self, version: int) -> Sums:
        for sums in reversed(self.versions):
            if sums.version == version:
                return sums
        self.versions = sorted([*self.versions, Sums(version)], key=lambda sums: sums.version)
        while len(self.versions) > MAX_VERSIONS:
            # The first ones stay what later ones are compared with: two in the middle become one.
            self.versions[1:3] = [self.versions[1].plus(self.versions[2])]
        return next(sums for sums in reversed(self.versions) if sums.version >= version)

    def _look(self) -> None:
        recent, rest = _newest(self.versions)
        if recent is None:
            return
        found = None
        for reference in _references(rest, recent):
            found = found or _compared(reference, recent)
        if found is None:
            self.raised = None
            return
        name, carried, success = found
        text = (
            f"{name!r} brought {carried:+.3f} of reward more than before, "
            f"while success moved by {success:+.3f} and does not depend on it"
        )
        since = self.raised.since_version if self.raised else recent.version
        shown = tuple(self.unsolved.ids)
        self.raised = Alarm(MonitorKind.DRIFT, text, carried, _MIN_GAIN, since, recent.version, shown)


def _newest(versions: list[Sums]) -> tuple[Sums | None, list[Sums]]:
    """The newest versions that have enough episodes together, and those before them."""
    total = Sums()
    for at in range(len(versions) - 1, -1, -1):
        total = total.plus(versions[at])
        if total.num >= MIN_EPISODES:
            return total, versions[:at]
    return None, versions


def _references(before: list[Sums], recent: Sums) -> Iterable[Sums]:
    """The first versions of the run, and those a few versions back, each with enough episodes."""
    first = Sums()
    for sums in before:
        first = first.plus(sums)
        if first.num >= MIN_EPISODES:
            yield first
            break
    older = [sums for sums in before if sums.version <= recent.version - 2 * _LAG]
    late, _ = _newest(older)
    if late is not None:
        yield late


def _compared(old: Sums, new: Sums) -> tuple[str, float, float] | None:
    """(component, what it pays more, gain of success) of the component that gained most, of those that rose
    surely while success did not keep pace; None: there is none, or the reward did not rise."""
    success = new.success / new.num - old.success / old.num
    error = math.hypot(old.error_of_success(), new.error_of_success())
    found = [
        (name, paid, success)
        for name in sorted(new.parts)
        if (paid := _sure_gain(name, old, new)) and success + error < _value_gain(name, old, new) / 2
    ]
    if not found or new.reward / new.num < old.reward / old.num:
        return None
    return max(found, key=lambda one: one[1])


def _sure_gain(name: str, old: Sums, new: Sums) -> float:
    """What a component pays more in the mean; 0 where that may be chance, or where success depends on it."""
    gained = new.part(name).paid / new.num - old.part(name).paid / old.num
    error = math.hypot(old.error_of(name), new.error_of(name))
    is_sure = gained - _SIGMAS * error > _MIN_GAIN and not new.helps(name)
    return gained if is_sure else 0.0


def _value_gain(name: str, old: Sums, new: Sums) -> float:
    return new.part(name).value / new.num - old.part(name).value / old.num
