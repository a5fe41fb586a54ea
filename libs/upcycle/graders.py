"""Graders score an answer; a `Rubric` is a weighted mean of graders.

A grader takes the agent's answer and returns a SubScore in [0, 1] whose `info` gives the reason. An answer
that lists several possibilities, so that one of them is right, scores 0.
"""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from upcycle.errors import DefinitionError, RewardInvalid
from upcycle.judge_grader import Criterion, LLMJudgeGrader
from upcycle.process_graders import (
    length_normalized,
    step_penalty,
    turn_rewards,
    well_formed_calls,
    when_solved,
)
from upcycle.rewards import EvaluationResult, SubScore, evaluation_result
from upcycle.rubrics import Grader, Rubric, Verdict, combine, combine_all, combine_any, grader
from upcycle.shell_grader import BashGrader
from upcycle.ui_graders import box_overlap, ui_action

__all__ = [
    "BashGrader",
    "Criterion",
    "EvaluationResult",
    "Grader",
    "LLMJudgeGrader",
    "Rubric",
    "SubScore",
    "box_overlap",
    "combine",
    "combine_all",
    "combine_any",
    "contains",
    "contains_all",
    "contains_any",
    "evaluation_result",
    "exact_match",
    "f1_score",
    "grader",
    "json_fields",
    "length_normalized",
    "normalize",
    "numeric_close",
    "numeric_match",
    "step_penalty",
    "turn_rewards",
    "ui_action",
    "well_formed_calls",
    "when_solved",
]

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ARTICLES = frozenset({"a", "an", "the"})
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*)\n```$", re.DOTALL)


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


def contains(part: str, *, forbidden: Sequence[str] = (), name: str = "contains") -> Grader:
    """1 if the text occurs in the answer as whole words, and none of the forbidden texts does."""
    return contains_all([part], forbidden=forbidden, name=name)


def contains_any(
    parts: Sequence[str],
    *,
    forbidden: Sequence[str] = (),
    max_chars: int | None = None,
    name: str = "contains_any",
) -> Grader:
    """1 if one of `parts`, spellings of one answer, occurs as whole words; otherwise as `contains_all`."""
    whole = contains_all(parts, forbidden=forbidden, max_chars=max_chars, name=name)

    def score(answer: str) -> Verdict:
        value, info = whole.score(answer)
        return float(value > 0), info

    return Grader(name, score)


def normalize(text: str) -> str:
    """A text without case, punctuation, articles (a, an, the) and superfluous white space; compatible
    spellings of a character are one (ﬁ is fi). Letters of other alphabets that look alike stay different."""
    flat = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(" " if unicodedata.category(one)[0] in "PSZC" else one for one in flat).split()
    return " ".join(word for word in words if word not in _ARTICLES)


def f1_score(expected: str, *, name: str = "f1_score") -> Grader:
    """How much the words of the answer and of the expected text overlap, after `normalize`: 2pr / (p + r),
    where p is the share of the answer's words that are expected and r the share of the expected words that
    are there. A long answer has a small p."""
    wanted = Counter(normalize(expected).split())
    if not wanted:
        raise DefinitionError("f1_score: the expected text has no word", "an empty answer would be right")

    def score(answer: str) -> Verdict:
        found = Counter(normalize(answer).split())
        common = (wanted & found).total()
        info = {"common": common, "words": found.total(), "expected": wanted.total()}
        return 2.0 * common / (wanted.total() + found.total()), info

    return Grader(name, score)


def numeric_match(expected: float, *, tolerance: float = 0.0, name: str = "numeric_match") -> Grader:
    """1 if the answer contains exactly one number, at most `tolerance` away; `numeric_close` has a relative
    tolerance."""
    if not math.isfinite(tolerance) or tolerance < 0:
        raise DefinitionError(f"numeric_match: tolerance {tolerance!r} is not a finite number >= 0")
    return numeric_close(expected, rel_tol=0.0, abs_tol=tolerance, name=name)


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
        except (ValueError, RecursionError) as error:
            return 0.0, {"problem": f"not JSON: {error}"}
        if not isinstance(row, dict):
            return 0.0, {"problem": f"of type {type(row).__name__}, not an object"}
        wrong = [key for key, value in expected.items() if key not in row or not _same(row[key], value)]
        return 1.0 - len(wrong) / len(expected), {"wrong": wrong}

    return Grader(name, score)


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
