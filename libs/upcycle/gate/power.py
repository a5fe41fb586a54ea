"""What a held-out set can show, before a run: how often a candidate that is better would be promoted."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from upcycle.gate.decision import Verdict, decide
from upcycle.gate.outcomes import Outcomes, TaskOutcomes
from upcycle.gate.rule import GateRule
from upcycle.wording import amount

GAINS: Final = (0.03, 0.05, 0.10)
HOPELESS: Final = 0.5
_SUCCESS: Final = 0.5  # of head, where differences are hardest to see
_DIFFICULTY: Final = 1.5  # standard deviation of tasks, logits
_CHANGE: Final = 0.5  # of a trained policy's change from task to task, logits
_LEAST_REPS: Final = 24
_MOST_REPS: Final = 60
_TASK_REPS: Final = 6_000


@dataclass(frozen=True, slots=True)
class Power:
    """at: gain in every family (success-rate difference) to the chance of a promotion, within `error`."""

    num_tasks: int
    level: float
    at: Mapping[float, float]
    error: float

    @property
    def is_hopeless(self) -> bool:
        """Even a gain of 10 points would be missed more often than not."""
        return self.at[GAINS[-1]] < HOPELESS

    def line(self) -> str:
        """One line for people."""
        shown = ", ".join(f"{100 * gain:+.0f} points {chance:.0%}" for gain, chance in self.at.items())
        return f"power on {amount(self.num_tasks, 'held-out task')} (from success 50 %): {shown}"

    def warning(self) -> str:
        """What to do about a set that is hopeless; else empty."""
        if not self.is_hopeless:
            return ""
        return (
            f"{amount(self.num_tasks, 'held-out task')} can hardly show a gain: a candidate 10 points better "
            f"is promoted in {self.at[GAINS[-1]]:.0%} of cases; use more tasks, in fewer families, or "
            "more attempts"
        )


def power(families: Mapping[str, int], rule: GateRule, level: float | None = None) -> Power:
    """The shipped decision on simulated plays. families: tasks of each. level: of one candidate, the rule's
    alpha where none is given. Takes about a second of processor time, whatever the size of the set."""
    level = rule.alpha if level is None else level
    n = sum(families.values())
    reps = max(_LEAST_REPS, min(_MOST_REPS, _TASK_REPS // max(1, n)))
    rng = random.Random(0)  # noqa: S311 - a repeatable simulation, not a secret
    at = {}
    for gain in GAINS:
        shift = _shift(gain)
        verdicts = [decide(_plays(families, rule, shift, rng), rule, level).verdict for _ in range(reps)]
        at[gain] = verdicts.count(Verdict.PROMOTE) / reps
    return Power(n, level, at, math.sqrt(0.25 / reps))


def _plays(families: Mapping[str, int], rule: GateRule, shift: float, rng: random.Random) -> Outcomes:
    tasks = []
    for family, num_tasks in families.items():
        attempts = max(rule.cap, rule.attempts(family))
        for at in range(num_tasks):
            logit = rng.gauss(0, _DIFFICULTY)
            moved = (logit + rng.gauss(0, _CHANGE)) * _NARROWER + shift
            candidate, head = _sigmoid(moved), _sigmoid(logit)
            tasks.append(
                TaskOutcomes(
                    f"{family}/{at}",
                    family,
                    tuple(int(rng.random() < candidate) for _ in range(attempts)),
                    tuple(int(rng.random() < head) for _ in range(attempts)),
                )
            )
    return Outcomes(tuple(tasks))


_NARROWER: Final = _DIFFICULTY / math.hypot(_DIFFICULTY, _CHANGE)  # so that only the mean moves


def _shift(gain: float) -> float:
    """Of all logits, for a mean success of `gain` above one half."""
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean_success(middle) < _SUCCESS + gain else (low, middle)
    return high


def _mean_success(shift: float) -> float:
    """Of tasks whose logits are normal about `shift`, by the trapezoid rule."""
    steps = [at / 10 for at in range(-60, 61)]
    weights = [math.exp(-z * z / 2) for z in steps]
    values = (w * _sigmoid(shift + _DIFFICULTY * z) for w, z in zip(weights, steps, strict=True))
    return math.fsum(values) / math.fsum(weights)


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
