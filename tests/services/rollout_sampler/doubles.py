"""Small real servers in place of the peers: environments and registry over gRPC, engines over HTTP."""

import asyncio
import itertools
import json
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from aiohttp import web
from tests.libs.chat_format.conftest import write_model_dir

from chat_format import ChatFormat
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1 import service_pb2 as environment_pb2
from upcycle.api.environment.v1 import service_pb2_grpc
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.rpc import MAX_MESSAGE_BYTES

MODEL = "incident"
Context = grpc.aio.ServicerContext[Any, Any]


def write_policy(folder: Path, weight: float) -> Path:
    """A policy directory with a real tokenizer and one tensor; `weight` tells versions apart."""
    write_model_dir(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + struct.pack("<f", weight)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def tool_call(name: str, **arguments: object) -> str:
    """A turn that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


Script = Callable[[str, dict[str, Any]], Awaitable[str] | str]
"""(whole prompt as text, request) -> what the policy writes next."""


@dataclass
class EngineDouble:
    """Speaks vLLM's /inference/v1/generate; what it writes comes from a script."""

    chat: ChatFormat
    script: Script
    engine_id: str = "engine-a"
    model: str = MODEL
    version: int = 3
    channel: common_pb2.Channel.ValueType = common_pb2.CHANNEL_LATEST
    held_versions: tuple[int, ...] = ()
    requests: list[dict[str, Any]] = field(default_factory=list)
    change_reply: Callable[[dict[str, Any]], dict[str, Any]] = lambda reply: reply
    url: str = ""
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/weight_info", self._weight_info)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": str(self.version)})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        written = self.script(self.chat.decode(body["token_ids"]), body)
        text = written if isinstance(written, str) else await written
        stop_id = body["sampling_params"]["stop_token_ids"][0]
        ids = [*self.chat.encode(text), stop_id]
        limit = body["sampling_params"]["max_tokens"]
        reason = "stop" if len(ids) <= limit else "length"
        return web.json_response(self.change_reply(self._reply(ids[:limit], reason, body["model"])))

    def _reply(self, ids: Sequence[int], reason: str, model: str) -> dict[str, Any]:
        version = int(model.split("@v")[1]) if "@v" in model else self.version
        choice = {
            "index": 0,
            "token_ids": list(ids),
            "finish_reason": reason,
            "logprobs": {"content": [{"logprob": -0.125 * (1 + n % 7)} for n in range(len(ids))]},
            "weight_versions": [{"version": str(version), "start": 0, "end": len(ids)}],
        }
        return {"choices": [choice], "usage": {}}

    def lease(self) -> registry_pb2.EngineLease:
        return registry_pb2.EngineLease(
            engine_id=self.engine_id,
            base_url=self.url,
            model=self.model,
            channel=self.channel,
            version=self.version,
            held_versions=self.held_versions,
            state=registry_pb2.ENGINE_STATE_READY,
        )


@dataclass
class RegistryDouble:
    """Lists the engines that are in `engines`."""

    engines: list[EngineDouble] = field(default_factory=list)
    calls: int = 0
    address: str = ""
    _server: grpc.aio.Server | None = None

    async def start(self) -> None:
        handlers = {
            "ListEngines": grpc.unary_unary_rpc_method_handler(
                self._list,
                request_deserializer=service_pb2.ListEnginesRequest.FromString,
                response_serializer=service_pb2.ListEnginesResponse.SerializeToString,
            )
        }
        server = grpc.aio.server()
        name = "upcycle.api.registry.v1.RegistryService"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def _list(
        self, request: service_pb2.ListEnginesRequest, _: Context
    ) -> service_pb2.ListEnginesResponse:
        self.calls += 1
        return service_pb2.ListEnginesResponse(engines=[engine.lease() for engine in self.engines])


Tool = Callable[[dict[str, Any]], str]


class EnvironmentDouble(service_pb2_grpc.EnvironmentServiceServicer):
    """One scenario for every episode; remembers leases, calls and closes."""

    def __init__(self, tools: dict[str, Tool] | None = None, question: str = "Why is checkout down?") -> None:
        self.tools = tools or {}
        self.question = question
        self.role = "user"
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.kind: str | None = None
        self.fail_calls: list[grpc.StatusCode] = []
        self.tool_s = 0.01
        self.tool_limits: dict[str, float] = {}
        self.tool_sleeps_s = 0.0
        self.states: list[str] = []
        """At the prompt, after each call, before the grade; none: it declares none."""
        self.last_state_sleeps_s = 0.0
        self.is_frozen = False
        self.guidance = ""
        self.guidance_parts: list[trajectory_pb2.GuidancePart] = []
        self.open_leases: dict[str, str] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.results: dict[str, str] = {}
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.grade: Callable[[environment_pb2.GradeRequest], environment_pb2.GradeResponse] = lambda _: (
            environment_pb2.GradeResponse(reward=1.0, success=True)
        )
        self.num_open_calls = self.num_grade_calls = 0
        self.grades: list[environment_pb2.GradeRequest] = []
        self.judged: set[str] = set()
        """Leases whose grade asks the default judge first; none: a fleet of 0.3.0."""
        self.address = ""
        self._numbers = itertools.count()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        size = MAX_MESSAGE_BYTES * 4
        options = [("grpc.max_send_message_length", size), ("grpc.max_receive_message_length", size)]
        server = grpc.aio.server(options=[*options, ("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_EnvironmentServiceServicer_to_server(self, server)
        self.address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def _fail(self, context: Context, code: grpc.StatusCode, text: str) -> None:
        trailing = (("upcycle-error-kind", self.kind),) if self.kind else ()
        await context.abort(code, text, trailing_metadata=trailing)

    async def Open(
        self, request: environment_pb2.OpenRequest, context: Context
    ) -> environment_pb2.OpenResponse:
        self.num_open_calls += 1
        if self.refuse is not None:
            await self._fail(context, *self.refuse)
        lease_id = f"lease-{next(self._numbers)}"
        self.open_leases[lease_id] = request.episode_id
        self.opened.append(request.episode_id)
        specs = [
            environment_pb2.ToolSpec(
                name=name,
                description="looks",
                parameters_json='{"type": "object", "properties": {}}',
                timeout_s=self.tool_limits.get(name),
            )
            for name in self.tools
        ]
        prompt = [trajectory_pb2.Message(role=self.role, content=self.question)]
        return environment_pb2.OpenResponse(
            lease_id=lease_id,
            environment_address=self.address,
            prompt=prompt,
            tools=specs,
            first_state=self._next_state(),
            guidance=self.guidance,
            guidance_parts=self.guidance_parts,
        )

    def _next_state(self) -> trajectory_pb2.StateSnapshot | None:
        return trajectory_pb2.StateSnapshot(value_json=self.states.pop(0)) if self.states else None

    async def ReadLastState(
        self, request: environment_pb2.ReadLastStateRequest, context: Context
    ) -> environment_pb2.ReadLastStateResponse:
        await asyncio.sleep(self.last_state_sleeps_s)
        if self.fail_calls:
            await self._fail(context, self.fail_calls.pop(0), "as the test wants")
        return environment_pb2.ReadLastStateResponse(state=self._next_state())

    async def CallTool(
        self, request: environment_pb2.CallToolRequest, context: Context
    ) -> environment_pb2.CallToolResponse:
        if self.is_frozen:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.tool_sleeps_s)
        if self.fail_calls:
            await self._fail(context, self.fail_calls.pop(0), "as the test wants")
        if request.lease_id not in self.open_leases:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        if request.call_id not in self.results:
            arguments = json.loads(request.arguments_json)
            self.calls.append((request.call_id, request.name, arguments))
            tool = self.tools.get(request.name)
            if tool is None:
                return environment_pb2.CallToolResponse(content=f"no tool {request.name!r}", is_error=True)
            self.results[request.call_id] = tool(arguments)
        content, state = self.results[request.call_id], self._next_state()
        return environment_pb2.CallToolResponse(content=content, duration_s=self.tool_s, state=state)

    async def Grade(
        self, request: environment_pb2.GradeRequest, context: Context
    ) -> environment_pb2.GradeResponse:
        self.num_grade_calls += 1
        if self.refuse is not None:
            await self._fail(context, *self.refuse)
        if request.lease_id not in self.open_leases:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        self.grades.append(request)
        return self.grade(request)

    async def GradeJudged(
        self, request: environment_pb2.GradeJudgedRequest, context: Context
    ) -> environment_pb2.GradeJudgedResponse:
        if not self.judged:
            await self._fail(context, grpc.StatusCode.UNIMPLEMENTED, "as a fleet of 0.3.0 answers")
        if request.lease_id in self.judged and not request.HasField("answer"):
            question = environment_pb2.JudgeQuestion(question_id=request.lease_id, user="What of this?")
            return environment_pb2.GradeJudgedResponse(question=question)
        if request.answer.failure:
            self.kind = "external_failure"
            await self._fail(context, grpc.StatusCode.ABORTED, request.answer.failure)
        graded = await self.Grade(environment_pb2.GradeRequest(lease_id=request.lease_id), context)
        return environment_pb2.GradeJudgedResponse(grade=graded)

    async def Close(
        self, request: environment_pb2.CloseRequest, context: Context
    ) -> environment_pb2.CloseResponse:
        self.closed.append(request.lease_id)
        if self.open_leases.pop(request.lease_id, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        return environment_pb2.CloseResponse()


async def never(_: str, __: dict[str, Any]) -> str:
    """A script that does not come back in time."""
    await asyncio.sleep(3600)
    return ""
