"""Graders score an answer; a `Rubric` is a weighted mean of graders.

A grader takes the agent's answer and returns a SubScore in [0, 1] whose `info` gives the reason. An answer
that lists several possibilities, so that one of them is right, scores 0.
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycle.errors import DefinitionError, RewardInvalid
from upcycle.rewards import EvaluationResult, SubScore, evaluation_result, unit_interval

__all__ = [
    "EvaluationResult",
    "Grader",
    "Rubric",
    "SubScore",
    "contains_all",
    "evaluation_result",
    "exact_match",
    "grader",
    "json_fields",
    "numeric_close",
]

Verdict = tuple[float, Mapping[str, Any]]

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*)\n```$", re.DOTALL)


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

    def weighing(self, weight: float, *, required: bool = False, name: str = "") -> "Grader":
        """A copy with another weight, and optionally another name, or required (a 0 makes the score 0)."""
        return Grader(name or self.name, self.score, weight, required)


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


def exact_match(expected: str, *, case_sensitive: bool = False, name: str = "exact_match") -> Grader:
    """1 if the answer equals the expected text; case, and the amount of white space, do not count."""
    wanted = _normal(expected, case_sensitive)
    if not wanted:
        raise DefinitionError("exact_match: the expected text is empty", "an empty answer would be right")

    def score(answer: str) -> Verdict:
        return float(_normal(answer, case_sensitive) == wanted), {"expected": expected}

    return Grader(name, score)


def contains_all(
    parts: Sequence[str],
    *,
    forbidden: Sequence[str] = (),
    max_chars: int | None = None,
    name: str = "contains_all",
) -> Grader:
    """The share of `parts` that occur in the answer as whole words; 0 if a forbidden text occurs.

    forbidden: the other plausible answers, so that an answer which lists all of them scores 0. max_chars: a
    longer answer scores 0.
    """
    if isinstance(parts, str) or not parts or not all(part.strip() for part in parts):
        raise DefinitionError(f"contains_all: parts {parts!r} is not a list of non-empty texts")

    def score(answer: str) -> Verdict:
        if max_chars is not None and len(answer) > max_chars:
            return 0.0, {"too_long": len(answer), "max_chars": max_chars}
        named = [text for text in forbidden if _mentions(answer, text)]
        if named:
            return 0.0, {"forbidden": named}
        missing = [part for part in parts if not _mentions(answer, part)]
        return 1.0 - len(missing) / len(parts), {"missing": missing}

    return Grader(name, score)


def numeric_close(
    expected: float, *, rel_tol: float = 1e-6, abs_tol: float = 1e-9, name: str = "numeric_close"
) -> Grader:
    """1 if the answer contains exactly one number, however often, and it is close to the expected one."""
    if not math.isfinite(expected):
        raise DefinitionError(f"numeric_close: expected {expected!r} is not finite")

    def score(answer: str) -> Verdict:
        found = sorted({_number(match) for match in _NUMBER.findall(answer)})
        if len(found) != 1:
            return 0.0, {"numbers": found[:5], "problem": "no number" if not found else "several numbers"}
        close = math.isclose(found[0], expected, rel_tol=rel_tol, abs_tol=abs_tol)
        return float(close), {"number": found[0], "expected": expected}

    return Grader(name, score)


def json_fields(expected: Mapping[str, Any], *, name: str = "json_fields") -> Grader:
    """The share of expected fields whose values the answer, a JSON object in a fence or not, has."""
    if not expected:
        raise DefinitionError("json_fields: no expected field", "any JSON object would be right")

    def score(answer: str) -> Verdict:
        fenced = _FENCE.match(answer.strip())
        try:
            row = json.loads(fenced.group(1) if fenced else answer)
        except ValueError as error:
            return 0.0, {"problem": f"not JSON: {error}"}
        if not isinstance(row, dict):
            return 0.0, {"problem": f"a {type(row).__name__}, not an object"}
        wrong = [key for key, value in expected.items() if key not in row or not _same(row[key], value)]
        return 1.0 - len(wrong) / len(expected), {"wrong": wrong}

    return Grader(name, score)


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
        self._total = total

    def __call__(self, answer: str) -> EvaluationResult:
        return self.grade(answer)

    def grade(self, answer: str) -> EvaluationResult:
        """Run every grader. Raises RewardInvalid for a value outside [0, 1], and whatever a grader raises."""
        subscores = tuple(one(answer) for one in self.graders)
        score = math.fsum(one.value * one.weight for one in subscores) / self._total
        gated = [
            one.name
            for one, verdict in zip(self.graders, subscores, strict=True)
            if one.required and not verdict.value
        ]
        score = 0.0 if gated else min(1.0, max(0.0, score))
        info = {"gated_by": gated} if gated else {}
        return EvaluationResult(score, score >= self.success_at - 1e-6, subscores, info)


def _normal(text: str, case_sensitive: bool) -> str:
    flat = " ".join(text.split())
    return flat if case_sensitive else flat.casefold()


def _mentions(answer: str, part: str) -> bool:
    # Whole words only: "orders" must not be found in "reorders-db".
    words = r"\s+".join(re.escape(word) for word in part.split())
    return re.search(rf"(?<![\w-]){words}(?![\w-])", answer, re.IGNORECASE) is not None


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError as error:
        raise RewardInvalid(f"numeric_close: {text!r} is not a number") from error


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, str) and isinstance(expected, str):
        return _normal(value, case_sensitive=False) == _normal(expected, case_sensitive=False)
    return bool(value == expected)
