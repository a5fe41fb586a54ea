"""Episodes in their environments: what a scenario yields and grades, from and to protobuf."""

import json
from collections.abc import Mapping
from typing import Any

from episodes import policy_failure
from scenario_runner.domain.environments import (
    Grade,
    JudgeAnswer,
    JudgeAsked,
    Message,
    Opened,
    ScenarioTranscript,
)
from upcycle.api.environment.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.environment.tools import ToolSpec
from upcycle.judge_calls import JudgeReply
from upcycle.moments import timestamp
from upcycle.states import StateEntry


def opened_to_wire(opened: Opened, address: str) -> pb.OpenResponse:
    """address: host:port of the holder of the lease."""
    return pb.OpenResponse(
        lease_id=opened.lease_id,
        environment_address=address,
        prompt=[_message(row) for row in opened.prompt],
        tools=[_tool(tool) for tool in opened.tools],
        expires_at=timestamp(opened.expires_at),
        limits_calls=True,
        source_digest=opened.source_digest,
        first_state=state_to_wire(opened.first_state),
        guidance=opened.guidance,
        guidance_parts=[
            trajectory_pb2.GuidancePart(kind=kind, text=text) for kind, text in opened.guidance_parts.items()
        ],
    )


def state_to_wire(state: StateEntry | None) -> trajectory_pb2.StateSnapshot | None:
    """None where the environment declares no state."""
    if state is None:
        return None
    return trajectory_pb2.StateSnapshot(value_json=state.value, patch_json=state.patch, note=state.note)


def grade_to_wire(grade: Grade) -> pb.GradeResponse:
    """A reward with its tree."""
    fault = grade.failure
    return pb.GradeResponse(
        reward=grade.reward,
        success=grade.success,
        subscores=[_subscore(row) for row in grade.subscores],
        info_json=_json(grade.info),
        duration_s=grade.duration_s,
        turn_rewards=grade.turn_rewards,
        failure=None if fault is None else policy_failure(fault.failure_kind, str(fault)),
    )


def judged_to_wire(outcome: Grade | JudgeAsked) -> pb.GradeJudgedResponse:
    """The grade, or the question that it waits for."""
    if isinstance(outcome, Grade):
        return pb.GradeJudgedResponse(grade=grade_to_wire(outcome))
    asked = outcome.question
    question = pb.JudgeQuestion(
        question_id=outcome.question_id, judge=asked.model, system=asked.system, user=asked.user
    )
    return pb.GradeJudgedResponse(question=question)


def answer_from_wire(message: pb.JudgeAnswer) -> JudgeAnswer:
    """What a judge said."""
    reply = JudgeReply(message.text, message.model, message.prompt_tokens, message.completion_tokens)
    return JudgeAnswer(message.question_id, reply, message.failure, message.refusal)


def transcript_from_body(body: trajectory_pb2.TrajectoryBody) -> ScenarioTranscript:
    """Of a stored trajectory only what a scenario reads: the answer, and per turn text and tool calls."""
    return ScenarioTranscript(
        body.episode.episode_id, body.answer, {"turns": [_turn(turn) for turn in body.turns]}
    )


def _turn(turn: trajectory_pb2.Turn) -> dict[str, Any]:
    results = {result.call_id: result for result in turn.tool_results}
    calls = []
    for call in turn.tool_calls:
        result = results.get(call.call_id)
        calls.append(
            {
                "name": call.name,
                "arguments": _json_or_empty(call.arguments_json),
                "result": result.content if result is not None else "",
                "is_error": result.is_error if result is not None else False,
            }
        )
    apart = {"reasoning": turn.reasoning} if turn.reasoning else {}
    return {"text": turn.text, "tool_calls": calls, **apart}


def _json_or_empty(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}  # the policy wrote something that is not JSON; parse_error of its turn has the reason


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _message(row: Message) -> trajectory_pb2.Message:
    return trajectory_pb2.Message(role=row["role"], content=row["content"], name=row["name"])


def _tool(tool: ToolSpec) -> pb.ToolSpec:
    return pb.ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters_json=_json(tool.parameters),
        timeout_s=tool.timeout_s,
    )


def _subscore(row: Mapping[str, Any]) -> trajectory_pb2.Subscore:
    info = row.get("info")
    text = info if isinstance(info, str) else _json(info) if info else ""
    return trajectory_pb2.Subscore(
        name=row["name"],
        weight=row["weight"],
        value=row["value"],
        info=text,
        children=[_subscore(child) for child in row.get("children", ())],
    )
