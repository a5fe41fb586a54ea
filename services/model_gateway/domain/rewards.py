"""The reward that a client gives to its recorded session, read and checked before anything is changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from episodes import Split
from identities.entities import RECORDED_GROUP, RECORDED_GROUP_RULE
from model_gateway.domain.errors import BadRequest, GatewayError, UnknownField
from upcycle.errors import InfrastructureError, RewardInvalid
from upcycle.rewards import EvaluationResult, evaluation_result

FIELDS: Final = ("score", "success", "subscores", "group", "split")
MAX_BYTES: Final = 32 * 1024
"""Of a reward: the fact that announces it has room for so much."""


class OtherReward(GatewayError):
    """The session has another reward, or none came within its retention."""

    status, kind, code = 409, "invalid_request_error", "session_graded"


class GradingUnavailable(GatewayError):
    """The reward could not be given now; the same reward may be sent again."""

    status, kind, code = 503, "server_error", "grading_unavailable"


@dataclass(frozen=True, slots=True)
class SessionReward:
    """result: score, success and subscores. group: as the client calls it, or empty."""

    result: EvaluationResult
    group: str
    split: Split


@dataclass(frozen=True, slots=True)
class StandingReward:
    """What is stored. unrecorded_calls: of the session, beyond its bounds; then it never trains."""

    trajectory_id: str
    group_id: str
    score: float
    success: bool
    unrecorded_calls: int = 0


def read_reward(raw: bytes, body: Any) -> SessionReward:
    """Raises BadRequest, UnknownField."""
    if len(raw) > MAX_BYTES:
        raise BadRequest(
            f"the reward has {len(raw)} bytes, at most {MAX_BYTES} are taken: shorten the info of its "
            "subscores"
        )
    if not isinstance(body, Mapping):
        raise BadRequest(f"the body is a JSON {type(body).__name__}, expected an object")
    if unknown := sorted(body.keys() - set(FIELDS)):
        name = unknown[0][:80]
        raise UnknownField(f"unknown field {name!r} of a reward; it has {', '.join(FIELDS)}", param=name)
    _refuse_truth_values(body)
    given = {name: body[name] for name in FIELDS[:3] if body.get(name) is not None}
    try:
        result = evaluation_result(given)
    except (RewardInvalid, InfrastructureError) as error:
        raise BadRequest(
            str(error), param=next((name for name in FIELDS if name in str(error)), "score")
        ) from error
    group, split = body.get("group") or "", body.get("split") or Split.UNASSIGNED.value
    if group and not (isinstance(group, str) and RECORDED_GROUP.fullmatch(group)):
        raise BadRequest(f"group is {group!r:.80}, expected {RECORDED_GROUP_RULE}", param="group")
    if split not in tuple(Split):
        raise BadRequest(f"split is {split!r:.80}, expected one of {', '.join(Split)}", param="split")
    return SessionReward(result, group, Split(split))


def _refuse_truth_values(body: Mapping[str, Any]) -> None:
    """`true` is a success, not the score 1; no client means the one by the other. Raises BadRequest."""
    if isinstance(body.get("score"), bool):
        raise BadRequest(
            f"score is {str(body['score']).lower()}, expected a number from 0 to 1; `success` takes true and "
            "false",
            param="score",
        )
    subscores = body.get("subscores")
    for index, one in enumerate(subscores if isinstance(subscores, list) else ()):
        for name in ("value", "weight"):
            if isinstance(one, Mapping) and isinstance(one.get(name), bool):
                where = f"subscores[{index}].{name}"
                raise BadRequest(f"{where} is {str(one[name]).lower()}, expected a number", param=where)
