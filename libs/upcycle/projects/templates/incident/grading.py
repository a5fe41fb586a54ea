"""The graded reward and the binary success of a diagnosis.

Defences against reward hacking: the answer must be one service and one cause and nothing else, so listing
candidates scores 0; class and cause earn nothing for the wrong service, so guessing the likeliest cause pays
nothing; brevity is paid for a right diagnosis only, and never for fewer calls than the evidence takes.
"""

import re
from dataclasses import dataclass

from world import CAUSES, ERROR_CLASS, Incident

WEIGHTS = {"service": 0.3, "error_class": 0.2, "cause": 0.4, "brevity": 0.1}
# Issues, stack trace, logs, deploys: what the evidence takes. A further call costs a quarter of the brevity.
NEEDED_CALLS = 4
_BREVITY_LOST_PER_CALL = 0.25

_ANSWER = re.compile(r"[ \n]*service: ([a-z]{1,20}-[a-z]{1,20})[ \n]+cause: ([a-z_]{1,30})[ \n]*")
_MAX_ANSWER_CHARS = 200


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the agent claims."""

    service: str
    cause: str


@dataclass(frozen=True, slots=True)
class Grade:
    """subscores: name -> value in 0..1, weighted by WEIGHTS. score: their weighted sum, 1.0 for a right
    diagnosis in the fewest calls. success: service and cause are right."""

    score: float
    success: bool
    subscores: dict[str, float]
    reason: str


def read_answer(answer: str) -> Diagnosis | None:
    """The one diagnosis in an answer, or None: anything before, between or after it is not a diagnosis."""
    if len(answer) > _MAX_ANSWER_CHARS:
        return None
    match = _ANSWER.fullmatch(answer)
    if match is None or match.group(2) not in CAUSES:
        return None
    return Diagnosis(service=match.group(1), cause=match.group(2))


def grade(incident: Incident, answer: str, num_calls: int) -> Grade:
    """Grade an answer given after `num_calls` tool calls."""
    diagnosis = read_answer(answer)
    if diagnosis is None:
        return _refused("not one diagnosis: answer 'service: NAME cause: CAUSE'")
    if diagnosis.service != incident.faulty:
        return _refused(f"{diagnosis.service} is not at fault")
    success = diagnosis.cause == incident.cause
    extra_calls = max(0, num_calls - NEEDED_CALLS)
    values = {
        "service": 1.0,
        "error_class": float(ERROR_CLASS[diagnosis.cause] == ERROR_CLASS[incident.cause]),
        "cause": float(success),
        "brevity": max(0.0, 1.0 - _BREVITY_LOST_PER_CALL * extra_calls) if success else 0.0,
    }
    score = min(1.0, sum(WEIGHTS[name] * value for name, value in values.items()))
    reason = "right" if success else f"{diagnosis.service} is at fault, but not by {diagnosis.cause}"
    return Grade(score, success, values, reason)


def _refused(reason: str) -> Grade:
    return Grade(0.0, False, dict.fromkeys(WEIGHTS, 0.0), reason)
