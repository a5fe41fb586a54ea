"""One answer for everything: the share of tasks that get the same answer, against what was usual."""

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from reward_monitors.alarms import Alarm, MonitorKind
from reward_monitors.detection import BASELINE
from reward_monitors.observed import Observed

WINDOW: Final = 192
"""Answers that are kept."""
_EVERY: Final = 8
"""Answers between two looks."""
_SIGMAS: Final = 3.0
_MORE: Final = 0.15
_MAX_CHARS: Final = 200
_SPACES: Final = re.compile(r"\s+")


@dataclass(slots=True)
class KeptAnswer:
    """One answer, shortened."""

    task: str
    answer: str
    reward: float
    trajectory_id: str


@dataclass(slots=True)
class AnswerMonitor:
    """Raised while the most frequent answer is given to more tasks than its prior allows, and is paid at
    least as well as the others."""

    kept: list[KeptAnswer] = field(default_factory=list)
    num: int = 0
    usual: float | None = None
    raised: Alarm | None = None

    def count(self, one: Observed) -> None:
        """One answer."""
        if not one.answer or not one.is_graded:
            return
        text = _SPACES.sub(" ", one.answer.strip().lower())[:_MAX_CHARS]
        self.kept = [*self.kept[-(WINDOW - 1) :], KeptAnswer(one.task, text, one.reward, one.trajectory_id)]
        self.num += 1
        if self.num < BASELINE or self.num % _EVERY:
            return
        answer, share, tasks = self._top()
        if self.usual is None:
            self.usual = share
            return
        limit = max(self.usual + _MORE, one.declared.answer_prior)
        lower = share - _SIGMAS * math.sqrt(share * (1 - share) / tasks)
        is_high = lower > limit and self._is_paid(answer)
        self.raised = self._alarm(answer, share, limit, one.version) if is_high else None

    def alarm(self) -> Alarm | None:
        """None while nothing is wrong."""
        return self.raised

    def _top(self) -> tuple[str, float, int]:
        """The answer that most tasks got, the share of tasks that got it, and how many tasks there are. The
        unit is the task: attempts at one should agree."""
        tasks: dict[str, int] = defaultdict(int)
        pairs: dict[tuple[str, str], int] = defaultdict(int)
        for one in self.kept:
            tasks[one.task] += 1
            pairs[one.answer, one.task] += 1
        shares: dict[str, float] = defaultdict(float)
        for (answer, task), count in pairs.items():
            shares[answer] += count / tasks[task]
        answer = max(sorted(shares), key=lambda one: shares[one])
        return answer, min(1.0, shares[answer] / len(tasks)), len(tasks)

    def _is_paid(self, answer: str) -> bool:
        same = [one.reward for one in self.kept if one.answer == answer]
        others = [one.reward for one in self.kept if one.answer != answer]
        return not others or sum(same) / len(same) >= sum(others) / len(others)

    def _alarm(self, answer: str, share: float, limit: float, version: int) -> Alarm:
        shown = [one.trajectory_id for one in self.kept if one.answer == answer][-8:]
        text = f"{share:.0%} of the last tasks got the same answer, {answer[:80]!r}; {limit:.0%} is the limit"
        since = self.raised.since_version if self.raised else version
        return Alarm(MonitorKind.ANSWERS, text, share, limit, since, version, tuple(shown))
