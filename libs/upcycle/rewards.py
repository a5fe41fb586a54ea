"""Rewards: a score in [0, 1], whether the episode succeeded, and a tree of subscores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upcycle.errors import RewardInvalid

# A score this close to 1 is a success where the scenario does not say otherwise: weighted sums of subscores
# that are all 1.0 may miss 1.0 by rounding.
SUCCESS_TOLERANCE = 1e-6

_RESULT_FIELDS = frozenset({"score", "success", "subscores", "info", "content", "done", "isError"})
_SUBSCORE_FIELDS = frozenset({"name", "weight", "value", "info", "children"})


@dataclass(frozen=True, slots=True)
class SubScore:
    """One grader's verdict. value: in [0, 1]. weight: its share in the parent, any finite number >= 0. info:
    why, as JSON. Raises RewardInvalid."""

    name: str
    value: float
    weight: float = 1.0
    info: Mapping[str, Any] = field(default_factory=dict)
    children: tuple["SubScore", ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise RewardInvalid(f"subscore name {self.name!r} is not a non-empty string")
        object.__setattr__(self, "value", unit_interval(self.value, f"subscore {self.name!r}"))
        weight = self.weight
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not math.isfinite(weight)
            or weight < 0
        ):
            raise RewardInvalid(f"subscore {self.name!r}: weight {weight!r} is not a finite number >= 0")

    def to_json(self) -> dict[str, Any]:
        """The row of the control channel's `subscores`."""
        row: dict[str, Any] = {"name": self.name, "weight": float(self.weight), "value": self.value}
        if self.info:
            row["info"] = dict(self.info)
        if self.children:
            row["children"] = [child.to_json() for child in self.children]
        return row


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A graded episode. score: in [0, 1], what training uses. success: what gates count, by default whether
    score is 1; subscores, info, content: stored with the trajectory, for people. Raises RewardInvalid."""

    score: float
    success: bool | None = None
    subscores: tuple[SubScore, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", unit_interval(self.score, "reward"))
        if self.success is None:
            object.__setattr__(self, "success", self.score >= 1.0 - SUCCESS_TOLERANCE)
        elif not isinstance(self.success, bool):
            raise RewardInvalid(f"success {self.success!r} is not a bool")
        object.__setattr__(self, "subscores", tuple(self.subscores))

    def to_json(self) -> dict[str, Any]:
        """The result of `tasks.grade`."""
        row: dict[str, Any] = {"score": self.score, "success": self.success, "done": True}
        if self.subscores:
            row["subscores"] = [subscore.to_json() for subscore in self.subscores]
        if self.info:
            row["info"] = dict(self.info)
        if self.content is not None:
            row["content"] = self.content
        return row


def unit_interval(value: Any, what: str) -> float:
    """The value as a float in [0, 1]. Raises RewardInvalid for anything else, NaN included."""
    is_number = isinstance(value, int | float) or hasattr(value, "__float__")
    if not is_number or isinstance(value, str | bytes):
        raise RewardInvalid(f"{what} is {_shown(value)}, not a number", "yield a float in [0, 1]")
    number = float(value)
    if not math.isfinite(number):
        raise RewardInvalid(f"{what} is {number!r}, not finite", "yield a float in [0, 1]")
    if not 0.0 <= number <= 1.0:
        raise RewardInvalid(
            f"{what} is {number!r}, outside [0, 1]", "rescale it, for example score / max_score"
        )
    return number


def evaluation_result(value: Any) -> EvaluationResult:
    """Convert what a scenario yielded as its reward to an EvaluationResult. Raises RewardInvalid."""
    if isinstance(value, EvaluationResult):
        return value
    if isinstance(value, Mapping):
        return _from_mapping(value)
    return EvaluationResult(unit_interval(value, "reward"))


def _from_mapping(row: Mapping[str, Any]) -> EvaluationResult:
    unknown = sorted(str(key) for key in set(row) - _RESULT_FIELDS)
    if unknown:
        raise RewardInvalid(
            f"unknown field {unknown[0]!r} in reward", f"use {', '.join(sorted(_RESULT_FIELDS))}"
        )
    if "score" not in row:
        raise RewardInvalid("reward has no field 'score'", "yield {'score': 0.5, ...} or a float")
    return EvaluationResult(
        score=row["score"],
        success=row.get("success"),
        subscores=subscores_from(row.get("subscores") or ()),
        info=row.get("info") or {},
        content=row.get("content"),
    )


def subscores_from(rows: Sequence[Any]) -> tuple[SubScore, ...]:
    """Rows `{name, weight, value, info?, children?}` as SubScores. Raises RewardInvalid."""
    if isinstance(rows, str | bytes) or not isinstance(rows, Sequence):
        raise RewardInvalid(f"subscores is {_shown(rows)}, not a list")
    return tuple(row if isinstance(row, SubScore) else _subscore(row) for row in rows)


def _subscore(row: Any) -> SubScore:
    if not isinstance(row, Mapping):
        raise RewardInvalid(
            f"subscore {_shown(row)} is not an object", "use {'name':…, 'weight':…, 'value':…}"
        )
    unknown = sorted(str(key) for key in set(row) - _SUBSCORE_FIELDS)
    if unknown or "name" not in row or "value" not in row:
        problem = f"unknown field {unknown[0]!r}" if unknown else "needs 'name' and 'value'"
        raise RewardInvalid(
            f"subscore {_shown(row)}: {problem}", f"use {', '.join(sorted(_SUBSCORE_FIELDS))}"
        )
    return SubScore(
        name=row["name"],
        value=row["value"],
        weight=row.get("weight", 1.0),
        info=row.get("info") or {},
        children=subscores_from(row.get("children") or ()),
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
