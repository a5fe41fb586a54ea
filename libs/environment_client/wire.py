"""Answers of EnvironmentService -> what callers use; statuses -> errors."""

from collections.abc import Mapping
from typing import Any, Final

import grpc
import grpc.aio
import orjson

from blob_store import BlobRef
from environment_client.errors import EpisodeNotPlanned, ReplicaUnreachable
from environment_client.types import JudgeAnswer, JudgeAsked, Lease, OpenedEnvironment
from episodes import EpisodeBroken, EpisodeFailure
from upcycle.api.environment.v1 import service_pb2
from upcycle.errors import Unavailable
from upcycle.judge_calls import JudgeQuestion
from upcycle.rpc.errors import DETAILS_KEY, failure_kind, trailing

_NOT_PLANNED: Final = "not_planned"
_KEY_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""The keys of the deployment are being replaced, or wrong: no episode's fault."""
_KINDS: Final[Mapping[grpc.StatusCode, str]] = {
    grpc.StatusCode.ABORTED: EpisodeFailure.SCENARIO_ERROR,
    grpc.StatusCode.RESOURCE_EXHAUSTED: EpisodeFailure.SCENARIO_ERROR,
    grpc.StatusCode.DEADLINE_EXCEEDED: EpisodeFailure.TIMEOUT,
}
"""What a status means where the environment sent no kind. Any other is no fault of the scenario: the lease is
gone or the platform failed, and the episode counts as environment_lost."""
GRADE_KINDS: Final[Mapping[grpc.StatusCode, str]] = {
    **_KINDS,
    grpc.StatusCode.INVALID_ARGUMENT: EpisodeFailure.REWARD_INVALID,
    grpc.StatusCode.OUT_OF_RANGE: EpisodeFailure.REWARD_INVALID,
    grpc.StatusCode.DATA_LOSS: EpisodeFailure.BODY_CORRUPT,
}


def opened_from_wire(message: service_pb2.OpenResponse, default_address: str) -> OpenedEnvironment:
    """An empty address means the replica that answered. Raises EpisodeBroken for a tool without a schema."""
    return OpenedEnvironment(
        lease=Lease(message.lease_id, message.environment_address or default_address, message.limits_calls),
        prompt=tuple(message.prompt),
        tools=tuple(map(_function_spec, message.tools)),
        source_digest=message.source_digest,
        tool_limits={tool.name: tool.timeout_s for tool in message.tools if tool.HasField("timeout_s")},
        first_state=message.first_state if message.HasField("first_state") else None,
        guidance=message.guidance,
        guidance_parts=tuple(message.guidance_parts),
    )


def _function_spec(tool: service_pb2.ToolSpec) -> Mapping[str, Any]:
    try:
        parameters = orjson.loads(tool.parameters_json or "{}")
    except orjson.JSONDecodeError as error:
        raise EpisodeBroken(
            EpisodeFailure.SCENARIO_ERROR, f"tool {tool.name!r}: parameters_json is not JSON: {error}"
        ) from error
    if not isinstance(parameters, dict):
        raise EpisodeBroken(
            EpisodeFailure.SCENARIO_ERROR, f"tool {tool.name!r}: parameters_json is no JSON object"
        )
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def answer_to_wire(answer: JudgeAnswer) -> service_pb2.JudgeAnswer:
    """What a judge said, or why it said nothing."""
    return service_pb2.JudgeAnswer(
        question_id=answer.question_id,
        text=answer.reply.text,
        model=answer.reply.model,
        prompt_tokens=answer.reply.prompt_tokens,
        completion_tokens=answer.reply.completion_tokens,
        failure=answer.failure,
        refusal=answer.refusal,
    )


def judged_from_wire(message: service_pb2.GradeJudgedResponse) -> service_pb2.GradeResponse | JudgeAsked:
    """The grade, or the question that it waits for. Raises EpisodeBroken where it is neither."""
    match message.WhichOneof("outcome"):
        case "grade":
            return message.grade
        case "question":
            asked = message.question
            return JudgeAsked(asked.question_id, JudgeQuestion(asked.judge, asked.system, asked.user))
        case _:
            detail = "the fleet answered with neither a grade nor a question to a judge; is it newer?"
            raise EpisodeBroken(EpisodeFailure.GRADER_ERROR, detail)


def open_error(error: grpc.aio.AioRpcError, what: str) -> Exception:
    """Why an environment was not opened."""
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable("the environment service")
        case code if code in _KEY_REFUSED:
            return Unavailable(f"the environment service ({error.details()})")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Unavailable(f"a free environment slot ({error.details()})")
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.NOT_FOUND if failure_kind(error) in (
            None,
            _NOT_PLANNED,
        ):
            return EpisodeNotPlanned(_text(error, what))
        case _:
            return _broken(error, what, _KINDS)


def lease_error(
    error: grpc.aio.AioRpcError, what: str, lease: Lease, kinds: Mapping[grpc.StatusCode, str] = _KINDS
) -> Exception:
    """Why an opened environment did not answer: by the kind that it sent, else by the status."""
    if error.code() in _KEY_REFUSED:
        return Unavailable(f"{lease.address} ({error.details()})")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        # Our services send details with every status that they choose; a lost connection has none.
        if trailing(error, DETAILS_KEY) is not None or failure_kind(error) is not None:
            return Unavailable(f"{lease.address} ({error.details()})")
        return ReplicaUnreachable(f"environments at {lease.address}")
    return _broken(error, what, kinds)


def grade_error(error: grpc.aio.AioRpcError, body: BlobRef, lease: Lease) -> Exception:
    """Why there is no grade. One that takes longer than a call is asked for again."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and failure_kind(error) is None:
        return Unavailable(f"the grade of {body.key} by {lease.address}")
    return lease_error(error, f"grade {body.key}", lease, GRADE_KINDS)


def _broken(error: grpc.aio.AioRpcError, what: str, kinds: Mapping[grpc.StatusCode, str]) -> EpisodeBroken:
    kind = failure_kind(error) or kinds.get(error.code(), EpisodeFailure.ENVIRONMENT_LOST)
    return EpisodeBroken(kind, _text(error, what))


def _text(error: grpc.aio.AioRpcError, what: str) -> str:
    """The fleet's own sentence, which an author reads, where the fleet says whose failure it was."""
    if failure_kind(error) is not None and error.details():
        return str(error.details())
    return f"{what}: {error.code().name}: {error.details()}"
