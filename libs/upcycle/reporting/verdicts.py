"""What a comparison says: by success, by reward, and which of the two decides.

Success decides where its interval leaves out 0; else reward does, where its own does. They may disagree: an
agent that solves more tasks whole and earns less on the others.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

from upcycle.statistics.intervals import Estimate
from upcycle.wording import amount

MIN_TASKS: Final = 10
"""Below, an interval holds less than it promises where the values are skewed."""

Finding = Literal["higher", "lower", "none", "same", "no_interval", "few_tasks"]
_WORDS: Final[dict[Finding, str]] = {
    "higher": "higher, its interval lies above 0",
    "lower": "lower, its interval lies below 0",
    "none": "no difference is shown, its interval holds 0",
    "same": "the same on every task",
}
_SHOWS_NONE: Final = ("none", "same")


class ScoredDifference(Protocol):
    """B minus A. num_tasks, num_rewards: that success and reward rest on."""

    @property
    def success(self) -> Estimate: ...

    @property
    def reward(self) -> Estimate | None: ...

    @property
    def num_tasks(self) -> int: ...

    @property
    def num_rewards(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """better: a, b, none (no difference is shown) or unknown. decided_by: success, reward, both, or "" where
    nothing is decided."""

    overall: ScoredDifference
    success: Finding
    reward: Finding
    better: str
    decided_by: str

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        fields = asdict(self)
        del fields["overall"]
        return fields

    def lines(self) -> Iterator[str]:
        """What success says, what reward says, and the verdict."""
        one = self.overall
        yield f"success: {_words(self.success, one.success, one.num_tasks)}"
        yield f"reward: {_words(self.reward, one.reward, one.num_rewards)}"
        yield self._last()

    def _last(self) -> str:
        if self.better == "none":
            return "no difference is shown, by success or by reward"
        if self.better == "unknown":
            return "which one is better cannot be said"
        better = "B is better" if self.better == "b" else "B is worse"
        if self.decided_by == "both":
            return f"{better}: success and reward both say so"
        other, found = ("reward", self.reward) if self.decided_by == "success" else ("success", self.success)
        if found in _SHOWS_NONE:
            return f"{better}, decided by {self.decided_by}: {other} shows no difference"
        if found in ("higher", "lower"):
            return f"{better}, decided by {self.decided_by}, though its {other} is {found}"
        return f"{better}, decided by {self.decided_by}: {other} says nothing"


def verdict_of(overall: ScoredDifference) -> ComparisonVerdict:
    """Of two evaluations, or of two versions by their sessions, B against A."""
    success = _finding(overall.success, overall.num_tasks)
    reward = _finding(overall.reward, overall.num_rewards)
    speaking = {"success": success, "reward": reward}
    decided_by = next((name for name, one in speaking.items() if one in ("higher", "lower")), "")
    if not decided_by:
        better = "none" if success in _SHOWS_NONE and reward in _SHOWS_NONE else "unknown"
        return ComparisonVerdict(overall, success, reward, better, "")
    better = "b" if speaking[decided_by] == "higher" else "a"
    return ComparisonVerdict(overall, success, reward, better, "both" if success == reward else decided_by)


def _finding(estimate: Estimate | None, num_tasks: int) -> Finding:
    if estimate is None or num_tasks < MIN_TASKS:
        return "few_tasks"
    ends = estimate.interval
    if ends is None:
        return "no_interval" if estimate.value else "same"
    return "higher" if ends.low > 0 else "lower" if ends.high < 0 else "none"


def _words(found: Finding, estimate: Estimate | None, num_tasks: int) -> str:
    if found == "few_tasks":
        return f"{amount(num_tasks, 'task')}, at least {MIN_TASKS} say which is better"
    if found == "no_interval" and estimate is not None:
        side = "higher" if estimate.value > 0 else "lower"
        return f"{side} by the same on every task, which has no interval"
    return _WORDS[found]
