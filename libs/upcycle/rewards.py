"""Rewards: a score in [0, 1], whether the episode succeeded, and a tree of subscores.

Of a foreign environment, which speaks the control channel without our extension, the reward is any finite
number, and is kept as it was given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from upcycle.errors import InfrastructureError, RewardInvalid

# A score this close to 1 is a success where the scenario does not say otherwise: weighted sums of subscores
# that are all 1.0 may miss 1.0 by rounding.
SUCCESS_TOLERANCE = 1e-6
MAX_SUBSCORE_DEPTH = 32
"""Of a message, 100 levels are read."""

TURN_REWARDS = "turn_rewards"
"""In the info of a result: what each turn earns by itself."""

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
            raise RewardInvalid(f"subscore name {_shown(self.name)} is not a non-empty string")
        object.__setattr__(self, "value", unit_interval(self.value, f"subscore {self.name!r}"))
        if not _is_finite(self.weight) or not self._may_weigh(self.weight):
            limit = "a finite number" if self._may_weigh(-1) else "a finite number >= 0"
            raise RewardInvalid(f"subscore {self.name!r}: weight {_shown(self.weight)} is not {limit}")
        _mapping(self.info, f"info of subscore {self.name!r}")
        if self._depth() > MAX_SUBSCORE_DEPTH:
            raise RewardInvalid(
                f"subscore {self.name!r} has children in more than {MAX_SUBSCORE_DEPTH} levels",
                "flatten them: the message that carries them holds no more",
            )

    def _depth(self) -> int:
        """Its levels; those of its children were bounded when they were made."""
        return 1 + max((child._depth() for child in self.children), default=0)

    @staticmethod
    def _may_weigh(weight: float) -> bool:
        return weight >= 0

    def to_json(self) -> dict[str, Any]:
        """The row of the control channel's `subscores`."""
        row: dict[str, Any] = {"name": self.name, "weight": float(self.weight), "value": self.value}
        if self.info:
            row["info"] = dict(self.info)
        if self.children:
            row["children"] = [child.to_json() for child in self.children]
        return row


class ForeignSubScore(SubScore):
    """Of a foreign environment: a negative weight is a penalty."""

    __slots__ = ()

    @staticmethod
    def _may_weigh(weight: float) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A graded episode. score: in [0, 1], what training uses. success: what gates count, by default whether
    score is 1; subscores, info, content: stored with the trajectory, for people. A list under `turn_rewards`
    in the info is what each turn earns. Raises RewardInvalid."""

    score: float
    success: bool | None = None
    subscores: tuple[SubScore, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    content: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", self._score_of(self.score))
        if self.success is None:
            object.__setattr__(self, "success", self.score >= 1.0 - SUCCESS_TOLERANCE)
        elif not isinstance(self.success, bool):
            raise RewardInvalid(f"success {_shown(self.success)} is not a bool")
        object.__setattr__(self, "subscores", tuple(self.subscores))
        object.__setattr__(self, "info", self._checked_info(self.info))

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """What each turn earns by itself, in [0, 1]; empty where the scenario gives none."""
        return tuple(self.info.get(TURN_REWARDS) or ())

    @staticmethod
    def _checked_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
        given = _mapping(info, "info").get(TURN_REWARDS)
        if given is None:
            return info
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise RewardInvalid(
                f"{TURN_REWARDS} is {_shown(given)}, not a list", "give a number for each turn"
            )
        return {
            **info,
            TURN_REWARDS: [unit_interval(one, f"{TURN_REWARDS}[{at}]") for at, one in enumerate(given)],
        }

    @staticmethod
    def _score_of(value: Any) -> float:
        return unit_interval(value, "reward")

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


class ForeignResult(EvaluationResult):
    """Of a foreign environment: a score of any size. success: as it says, else whether score is 1 or more."""

    __slots__ = ()

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """None: what others write into their info is theirs."""
        return ()

    @staticmethod
    def _checked_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
        return info

    @staticmethod
    def _score_of(value: Any) -> float:
        return _finite(value, "reward", "send a finite number")


def unit_interval(value: Any, what: str) -> float:
    """The value as a float in [0, 1]. Raises RewardInvalid for anything else, NaN included."""
    number = _finite(value, what, "yield a float in [0, 1]")
    if not 0.0 <= number <= 1.0:
        raise RewardInvalid(
            f"{what} is {number!r}, outside [0, 1]", "rescale it, for example score / max_score"
        )
    return number


def _finite(value: Any, what: str, way_out: str) -> float:
    is_number = isinstance(value, int | float) or hasattr(value, "__float__")
    if not is_number or isinstance(value, str | bytes | complex | type):
        raise RewardInvalid(f"{what} is {_shown(value)}, not a number", way_out)
    try:
        number = float(value)
    except Exception as error:  # an int may be too large, and other libraries raise what they like
        raise RewardInvalid(f"{what} is {_shown(value)}, not a number: {error}", way_out) from error
    if not math.isfinite(number):
        raise RewardInvalid(f"{what} is {number!r}, not finite", way_out)
    return number


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def foreign_result(row: Any) -> EvaluationResult:
    """The result of `tasks.grade` of a foreign environment, as its own contract allows: unknown fields are
    left, weights may be negative, the score is any finite number.

    Raises InfrastructureError where the environment says that the evaluation itself failed (`isError`), and
    RewardInvalid.
    """
    if not isinstance(row, Mapping):
        raise RewardInvalid(f"the grade is {_shown(row)}, not an object")
    _refuse_failed(row)
    success = row.get("success")
    return ForeignResult(
        score=row.get("score"),  # type: ignore[arg-type] # checked there
        success=success if isinstance(success, bool) else None,
        subscores=_foreign_subscores(row.get("subscores")),
        info=_mapping(row.get("info"), "info"),
        content=None if row.get("content") is None else str(row["content"]),
    )


def _foreign_subscores(rows: Any) -> tuple[SubScore, ...]:
    if isinstance(rows, str | bytes) or not isinstance(rows or (), Sequence):
        raise RewardInvalid(f"subscores is {_shown(rows)}, not a list")
    return tuple(map(_foreign_subscore, rows or ()))


def _foreign_subscore(row: Any) -> SubScore:
    if not isinstance(row, Mapping):
        raise RewardInvalid(f"subscore {_shown(row)} is not an object")
    weight, info = row.get("weight"), _mapping(row.get("info"), "info of a subscore")
    children = _foreign_subscores(row.get("children"))
    return ForeignSubScore(
        row.get("name", ""), row.get("value", ""), 1.0 if weight is None else weight, info, children
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise RewardInvalid(f"{what} is {_shown(value)}, not an object")
    return value or {}


def _refuse_failed(row: Mapping[str, Any]) -> None:
    """The evaluation is missing then, whatever its score says."""
    if row.get("isError"):
        why = row.get("content") or row.get("info") or "no reason is given"
        raise InfrastructureError(f"the evaluation itself failed (isError): {_shown(why)}")


def evaluation_result(value: Any) -> EvaluationResult:
    """Convert what a scenario yielded as its reward to an EvaluationResult. Raises RewardInvalid, and
    InfrastructureError where it says that the evaluation itself failed (`isError`)."""
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
    _refuse_failed(row)
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
    try:
        text = repr(value)
    except Exception:  # also an int of more than 4300 digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
