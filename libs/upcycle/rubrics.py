"""What a grader is, and how several make one reward: `Grader`, `Rubric`, `combine`.

One idea in three places: a scenario's rubric, a result put together of scores that are there already, and
what an operator adds beside an environment are weighted means of subscores in [0, 1], by the same function.
"""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycle.errors import DefinitionError
from upcycle.raised import RAISED, described
from upcycle.rewards import TURN_REWARDS, EvaluationResult, SubScore, unit_interval

Verdict = tuple[float, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Grader:
    """One named scoring function. score: answer -> (value in [0, 1], why). weight: its share in a rubric.
    required: a 0 here makes the whole rubric's score 0."""

    name: str
    score: Callable[[str], Verdict]
    weight: float = 1.0
    required: bool = False

    def __call__(self, answer: str) -> SubScore:
        """Score one answer. Raises RewardInvalid if the function returns a value outside [0, 1]."""
        value, info = self.score(answer)
        return SubScore(self.name, unit_interval(value, f"grader {self.name!r}"), self.weight, info)

    async def ask(self, answer: str) -> SubScore:
        """The same, for a grader that takes time. Raises what a call raises."""
        return self(answer)

    def weighing(self, weight: float, *, required: bool = False, name: str = "") -> "Grader":
        """A copy with another weight, and optionally another name, or required (a 0 makes the score 0)."""
        return Grader(name or self.name, self.score, weight, required)

    def shadow(self, *, name: str = "") -> "Grader":
        """A copy of weight 0: its verdict is stored with the reward and changes nothing, also where it
        raises. For a grader that is tried out beside the one that pays."""

        def score(answer: str) -> Verdict:
            try:
                value, info = self.score(answer)
                return unit_interval(value, f"grader {self.name!r}"), info
            except RAISED as error:
                return 0.0, {"raised": described(error)[:500]}

        return Grader(name or f"shadow_{self.name}", score, 0.0)


def grader(
    function: Callable[[Any], Any], *, name: str = "", weight: float = 1.0, required: bool = False
) -> Grader:
    """A Grader made of your function `answer -> float | bool`. It gets an Answer, which has `.trajectory`."""
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"grader {function.__name__!r} is async", "await it in the scenario and pass its value"
        )

    def score(answer: str) -> Verdict:
        value = function(answer)
        return (float(value) if isinstance(value, bool) else value), {}

    return Grader(name or function.__name__, score, weight, required)


class Rubric:
    """Weighted graders with unique names. The score is their weighted mean, 0 if a required one scores 0.

    success_at: the score from which the episode counts as a success. Raises DefinitionError for two graders
    of one name, and for weights that sum to 0.
    """

    def __init__(self, graders: Iterable[Grader], *, success_at: float = 1.0) -> None:
        self.graders = tuple(graders)
        self.success_at = success_at
        names = [one.name for one in self.graders]
        total = sum(one.weight for one in self.graders)
        if len(set(names)) != len(names):
            raise DefinitionError(
                f"rubric has two graders called {max(names, key=names.count)!r}", "use name="
            )
        if any(one.weight < 0 for one in self.graders) or not math.isfinite(total) or total <= 0:
            raise DefinitionError(
                f"rubric weights sum to {total!r}", "give at least one grader a weight above 0"
            )

    def __call__(self, answer: str) -> EvaluationResult:
        return self.grade(answer)

    def grade(self, answer: str) -> EvaluationResult:
        """Run every grader. Raises RewardInvalid for a value outside [0, 1], and whatever a grader raises."""
        return self._result(tuple(one(answer) for one in self.graders))

    async def judged(self, answer: str) -> EvaluationResult:
        """The same with graders that take time, such as `LLMJudgeGrader`, which are awaited."""
        return self._result(tuple([await one.ask(answer) for one in self.graders]))

    def _result(self, subscores: tuple[SubScore, ...]) -> EvaluationResult:
        gated = [
            one.name
            for one, verdict in zip(self.graders, subscores, strict=True)
            if one.required and not verdict.value
        ]
        score = 0.0 if gated else weighted_mean(subscores)
        info = {"gated_by": gated} if gated else {}
        return EvaluationResult(
            score, score >= self.success_at - 1e-6, subscores, {**info, **_by_turn(subscores, bool(gated))}
        )


def weighted_mean(parts: Sequence[SubScore]) -> float:
    """The mean of the values by their weights. Raises DefinitionError where the weights sum to 0."""
    total = math.fsum(part.weight for part in parts)
    if total <= 0 or not math.isfinite(total):
        raise DefinitionError(f"weights sum to {total!r}", "give at least one part a weight above 0")
    return min(1.0, max(0.0, math.fsum(part.value * part.weight for part in parts) / total))


def _by_turn(parts: Sequence[SubScore], is_gated: bool) -> dict[str, Any]:
    """What each turn earns, by the parts that say it: their mean, by their weights. A shadow says nothing;
    where the score is 0 because of a required one, so is each turn's. Raises DefinitionError for lists of two
    lengths."""
    said = [
        (part.weight, part.info[TURN_REWARDS]) for part in parts if part.weight and TURN_REWARDS in part.info
    ]
    if not said:
        return {}
    lengths = {len(rewards) for _, rewards in said}
    if len(lengths) > 1:
        raise DefinitionError(
            f"graders reward {sorted(lengths)} turns", "each gives one number for each turn"
        )
    total = 0.0 if is_gated else 1.0 / math.fsum(weight for weight, _ in said)
    rows = zip(*(rewards for _, rewards in said), strict=True)
    weights = [weight * total for weight, _ in said]
    return {TURN_REWARDS: [min(1.0, math.fsum(map(operator.mul, weights, row))) for row in rows]}


def combine(*parts: SubScore, success_at: float = 1.0) -> EvaluationResult:
    """The weighted mean of scores that are there already, such as awaited ones, with their tree. Raises
    DefinitionError for two parts of one name and for weights that sum to 0."""
    _unique(parts)
    score = weighted_mean(parts)
    return EvaluationResult(score, score >= success_at - 1e-6, parts, _by_turn(parts, is_gated=False))


def combine_any(*parts: SubScore, name: str = "any", weight: float = 1.0) -> SubScore:
    """The best of several scores, as one. Raises DefinitionError for none, and for two of one name."""
    _unique(parts)
    return SubScore(name, max(part.value for part in parts), weight, {}, parts)


def combine_all(*parts: SubScore, name: str = "all", weight: float = 1.0) -> SubScore:
    """The worst of several scores, as one; otherwise as `combine_any`."""
    _unique(parts)
    return SubScore(name, min(part.value for part in parts), weight, {}, parts)


def _unique(parts: Sequence[SubScore]) -> None:
    names = [part.name for part in parts]
    if not names:
        raise DefinitionError("nothing to combine", "give at least one SubScore: grader(answer) makes one")
    if len(set(names)) != len(names):
        raise DefinitionError(f"two scores are called {max(names, key=names.count)!r}", "use name=")
