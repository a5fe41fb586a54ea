"""The graded reward and the binary success of a diagnosis.

Defences against reward hacking: the answer must be one service and one cause and nothing else, so listing
candidates scores 0; class and cause earn nothing for the wrong service; brevity is paid for a right diagnosis
only, and never for fewer calls than the evidence takes. Calls alone earn nothing.
"""

import re

from world import ERROR_CLASS

from upcycle import EvaluationResult, SubScore

WEIGHTS = {"service": 0.3, "error_class": 0.2, "cause": 0.4, "brevity": 0.1}
# Issues and stack trace. A further call costs a quarter of the brevity.
NEEDED_CALLS = 2
_BREVITY_LOST_PER_CALL = 0.25

_ANSWER = re.compile(r"[ \n]*service: ([a-z]{1,20}-[a-z]{1,20})[ \n]+cause: ([a-z_]{1,30})[ \n]*")
_MAX_ANSWER_CHARS = 200


def read_answer(answer: str) -> tuple[str, str] | None:
    """Service and cause of the one diagnosis in an answer, or None: anything around it is no diagnosis."""
    match = _ANSWER.fullmatch(answer) if len(answer) <= _MAX_ANSWER_CHARS else None
    return (match[1], match[2]) if match and match[2] in ERROR_CLASS else None


def grade(expected: str, answer: str, num_calls: int) -> EvaluationResult:
    """Grade an answer given after `num_calls` tool calls."""
    said, right = read_answer(answer), read_answer(expected)
    if said is None or right is None:
        return _refused("not one diagnosis: answer 'service: NAME cause: CAUSE'")
    if said[0] != right[0]:
        return _refused(f"{said[0]} is not at fault")
    success = said == right
    extra_calls = max(0, num_calls - NEEDED_CALLS)
    values = {
        "service": 1.0,
        "error_class": float(ERROR_CLASS[said[1]] == ERROR_CLASS[right[1]]),
        "cause": float(success),
        "brevity": max(0.0, 1.0 - _BREVITY_LOST_PER_CALL * extra_calls) if success else 0.0,
    }
    parts = tuple(SubScore(name, value, WEIGHTS[name]) for name, value in values.items())
    score = min(1.0, sum(part.value * part.weight for part in parts))
    reason = "right" if success else f"{said[0]} is at fault, but not by {said[1]}"
    return EvaluationResult(score, success, parts, {"reason": reason})


def _refused(reason: str) -> EvaluationResult:
    parts = tuple(SubScore(name, 0.0, weight) for name, weight in WEIGHTS.items())
    return EvaluationResult(0.0, False, parts, {"reason": reason})
