"""EnvironmentService: leases over gRPC."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from scenario_runner import metrics, wire
from scenario_runner.domain.environments import EpisodeFault, Message, ToolDescription
from scenario_runner.servicer.statuses import episode_errors_as_status
from scenario_runner.usecases.leases import Leases
from upcycle.api.environment.v1 import service_pb2 as pb
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceServicer
from upcycle.api.trajectory.v1 import trajectory_pb2

Context = grpc.aio.ServicerContext[Any, Any]


class EnvironmentServicer(EnvironmentServiceServicer):
    """address: gives host:port of this replica, where its leases can be used; known once it listens."""

    def __init__(self, leases: Leases, *, address: Callable[[], str]) -> None:
        self._leases = leases
        self._address = address

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:
        """Start an episode's environment."""
        with metrics.timed("open"):
            async with episode_errors_as_status(context):
                opened = await self._leases.open(request.episode_id)
                return pb.OpenResponse(
                    lease_id=opened.lease_id,
                    environment_address=self._address(),
                    prompt=[_message(row) for row in opened.prompt],
                    tools=[_tool(tool) for tool in opened.tools],
                    expires_at=wire.moment(opened.expires_at),
                )
        raise AssertionError("context.abort returned")

    async def CallTool(self, request: pb.CallToolRequest, context: Context) -> pb.CallToolResponse:
        """Call a tool, once per call id."""
        with metrics.timed("call_tool"):
            async with episode_errors_as_status(context):
                outcome = await self._leases.call_tool(
                    request.lease_id, request.call_id, request.name, request.arguments_json
                )
                return pb.CallToolResponse(
                    content=outcome.content,
                    is_error=outcome.is_error,
                    truncated=outcome.truncated,
                    duration_s=outcome.duration_s,
                )
        raise AssertionError("context.abort returned")

    async def Grade(self, request: pb.GradeRequest, context: Context) -> pb.GradeResponse:
        """Grade, once per lease."""
        with metrics.timed("grade"):
            async with episode_errors_as_status(context):
                transcript = transcript_from_wire(request.transcript)
                grade = await self._leases.grade(request.lease_id, request.answer, transcript)
                return pb.GradeResponse(
                    reward=grade.reward,
                    success=grade.success,
                    subscores=[_subscore(row) for row in grade.subscores],
                    info_json=json.dumps(grade.info, ensure_ascii=False, default=str),
                    duration_s=grade.duration_s,
                )
        raise AssertionError("context.abort returned")

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:
        """End an environment."""
        async with episode_errors_as_status(context):
            await self._leases.close(request.lease_id)
        return pb.CloseResponse()


def transcript_from_wire(body: trajectory_pb2.TrajectoryBody) -> dict[str, Any]:
    """What a scenario reads as `answer.trajectory`: turns with tool calls, each with its result."""
    return {"turns": [_turn(turn) for turn in body.turns]}


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
    return {"text": turn.text, "tool_calls": calls}


def _json_or_empty(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {}  # the policy wrote nonsense; its turn says so in parse_error


def _message(row: Message) -> trajectory_pb2.Message:
    content = row["content"]
    if isinstance(content, list):
        # Content parts, as OpenAI's clients write them: a text policy reads the text.
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if not isinstance(content, str):
        raise EpisodeFault("scenario_error", f"the prompt's content is a {type(content).__name__}, not text")
    return trajectory_pb2.Message(role=str(row["role"]), content=content, name=str(row.get("name", "")))


def _tool(tool: ToolDescription) -> pb.ToolSpec:
    parameters = json.dumps(tool.parameters, ensure_ascii=False)
    return pb.ToolSpec(name=tool.name, description=tool.description, parameters_json=parameters)


def _subscore(row: Mapping[str, Any]) -> trajectory_pb2.Subscore:
    info = row.get("info")
    return trajectory_pb2.Subscore(
        name=row["name"],
        weight=row["weight"],
        value=row["value"],
        info=info
        if isinstance(info, str)
        else json.dumps(info, ensure_ascii=False, default=str)
        if info
        else "",
        children=[_subscore(child) for child in row.get("children", ())],
    )
