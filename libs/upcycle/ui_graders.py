"""A reward for actions on a screen: the kind of action, and where it points."""

import json
import math
from collections.abc import Sequence
from typing import Any

from upcycle.errors import DefinitionError
from upcycle.rubrics import Grader, Verdict

Box = tuple[float, float, float, float]
"""left, top, right, bottom"""


def box_overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes (left, top, right, bottom), 0 to 1; 0 for a box without area."""
    first, second = _box(one), _box(other)
    if first is None or second is None:
        return 0.0
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    union = _area(first) + _area(second) - common
    return common / union if math.isfinite(union) and union > 0 else 0.0


def ui_action(
    action: str, box: Sequence[float], *, type_weight: float = 0.3, name: str = "ui_action"
) -> Grader:
    """For an answer `{"action": "click", "box": [left, top, right, bottom]}`: type_weight for the right kind
    of action, the rest times the overlap (IoU) of its box with the expected one. Another kind of action earns
    nothing, wherever it points."""
    if _box(box) is None or not action:
        raise DefinitionError(
            f"ui_action: {action!r} on box {box!r}", "give an action and a box with an area"
        )
    if not 0 <= type_weight < 1:
        raise DefinitionError(f"ui_action: type_weight is {type_weight!r}", "it is at least 0 and below 1")

    def score(answer: str) -> Verdict:
        row = _object(answer)
        if row is None:
            return 0.0, {"problem": "the answer is no JSON object"}
        if row.get("action") != action:
            return 0.0, {"action": str(row.get("action"))[:80], "expected": action}
        overlap = box_overlap(row.get("box") or (), box)
        return type_weight + (1.0 - type_weight) * overlap, {"overlap": overlap}

    return Grader(name, score)


def _object(answer: str) -> dict[str, Any] | None:
    try:
        row = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _box(value: Any) -> Box | None:
    """Four finite numbers that enclose an area."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 4:
        return None
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
        return None
    try:
        left, top, right, bottom = (float(one) for one in value)
    except OverflowError:
        return None
    box = (left, top, right, bottom)
    return box if all(map(math.isfinite, box)) and left < right and top < bottom else None


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
