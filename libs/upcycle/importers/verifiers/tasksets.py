"""Tasksets of verifiers 0.4: tasks with rewards of their own, and tools of Toolset classes."""

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.importers.errors import ImportRefused
from upcycle.importers.verifiers.hosting import (
    TRAIN,
    ForeignPlay,
    Scored,
    ScoredFunction,
    not_reached,
    with_calls,
)
from upcycle.tasks import MAX_TASKS
from upcycle.transcripts import Answer, Turn

_WAY_OUT: Final = "serve a taskset whose tasks need no runtime"


class TasksetEnvironment:
    """vf: `verifiers.v1`. Raises ImportRefused for what the control channel cannot say."""

    def __init__(self, vf: Any, taskset: Any, name: str, version: str, limit: int) -> None:
        self.name, self.version = name, version
        self._vf, self._taskset = vf, taskset
        _check_kind(vf, type(taskset).task_type(), name)
        self._tasks: list[Any] = list(islice(iter(taskset), limit))
        for number, task in enumerate(self._tasks):
            _check_task(task, f"task {number} of {name}")
        self.rows: Mapping[str, Sequence[Any]] = {TRAIN: [_content(task) for task in self._tasks]}
        self.weights: Sequence[float] = _weights(self._tasks[0]) if self._tasks else ()
        self._servers: list[_ToolServer] | None = None
        self._state: Any = None

    async def tools(self) -> Sequence[ToolSpec]:
        """Of the taskset's and the tasks' toolsets, with the prefix of each."""
        if self._servers is None:
            self._servers = [await _ToolServer.start(one, self._current_state) for one in self._toolsets()]
        return [spec for server in self._servers for spec in server.specs]

    def play(self, split: str, row: int) -> ForeignPlay:
        """With a trace of its own."""
        play = _Play(self._vf, self._tasks[row], self._servers or [])
        self._state = play.trace.state
        return play

    def _current_state(self) -> Any:
        return self._state

    def _toolsets(self) -> Iterator[Any]:
        taskset = self._taskset
        yield from taskset.toolsets(taskset.config)
        if self._tasks:
            yield from self._tasks[0].toolsets(self._tasks[0].config)


class _ToolServer:
    """A toolset in this process, behind the MCP server that it registers its tools with."""

    def __init__(self, toolset: Any, server: Any, specs: Mapping[str, ToolSpec]) -> None:
        self.toolset, self._server, self._specs = toolset, server, specs

    @property
    def specs(self) -> list[ToolSpec]:
        """As the agent sees them."""
        return list(self._specs.values())

    @classmethod
    async def start(cls, toolset: Any, state: Any) -> "_ToolServer":
        """Raises ImportRefused for one that runs elsewhere."""
        name = str(toolset.server_name)
        if url := getattr(toolset.config, "url", None):
            raise ImportRefused(f"toolset {name or type(toolset).__name__} runs at {url}", _WAY_OUT)

        async def current(*_: Any) -> Any:
            return state()

        async def kept(*_: Any) -> None:
            """The state of the trace was changed in place."""

        # Beside its rollout a toolset asks for the state over HTTP; here it is in this process.
        toolset._pull_state, toolset._push_state = current, kept
        await toolset.setup()
        server = importlib.import_module("mcp.server.mcpserver").MCPServer(name or type(toolset).__name__)
        toolset.register(server)
        prefix = f"{name}_" if name else ""
        specs = {
            one.name: ToolSpec(f"{prefix}{one.name}", one.description or "", dict(one.input_schema))
            for one in await server.list_tools()
        }
        return cls(toolset, server, specs)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult | None:
        """None for a tool of another server."""
        own = next((own for own, spec in self._specs.items() if spec.name == name), None)
        if own is None:
            return None
        try:
            result = await self._server.call_tool(own, dict(arguments))
        except importlib.import_module("mcp.server.mcpserver.exceptions").ToolError as error:
            if (failed := not_reached(error)) is not None:
                raise failed from error
            return ToolResult(str(error), is_error=True)  # as its server would tell a client
        texts = [part.text if hasattr(part, "text") else f"[{part.type}]" for part in result.content]
        return ToolResult("\n".join(texts), bool(result.is_error))


class _Play:
    def __init__(self, vf: Any, task: Any, servers: "Sequence[_ToolServer]") -> None:
        self._vf, self._task, self._servers = vf, task, servers
        states = importlib.import_module("verifiers.v1.state")
        kind = type(task)
        sent = vf.TraceTask(type=kind.__name__, data=task.data, key=task.key, hash=task.hash)
        agent = vf.AgentInfo(config=vf.AgentConfig())
        self.trace = vf.Trace(task=sent, state=states.state_cls(kind)(), agent=agent)

    async def begin(self) -> list[dict[str, Any]]:
        """The prompt of the task; its toolsets learn of it."""
        for server in self._servers:
            await server.toolset.setup_task(self._task.data)
        return [one.model_dump(exclude_none=True) for one in self._prompt()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """What an MCP client would be sent."""
        for server in self._servers:
            if (result := await server.call(name, arguments)) is not None:
                return result
        return ToolResult(f"no tool {name!r}", is_error=True)

    async def score(self, answer: Answer) -> Scored:
        """By the rewards, metrics and judges of the task."""
        trace = self.trace
        messages = [(message, False) for message in self._prompt()]
        messages += self._said(answer.trajectory.turns or (Turn(str(answer)),))
        trace.nodes = [
            self._vf.MessageNode(parent=at - 1 if at else None, message=message, sampled=sampled)
            for at, (message, sampled) in enumerate(messages)
        ]
        trace.is_completed = trace.ok = True
        await self._task.score(trace, None)
        functions = [
            ScoredFunction(name, one.score, one.weight) for name, one in trace.rewards.items() if one
        ]
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Scored(float(trace.reward), functions, {"measured": metrics} if metrics else {})

    def _prompt(self) -> list[Any]:
        data, vf = self._task.data, self._vf
        before = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
        asked = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt)
        return [*before, *asked]

    def _said(self, turns: Sequence[Turn]) -> list[tuple[Any, bool]]:
        """Each message of the turns, and whether the agent wrote it."""
        vf, said = self._vf, list[tuple[Any, bool]]()
        for turn, calls in with_calls(turns, vf.ToolCall):
            said.append((vf.AssistantMessage(content=turn.text, tool_calls=calls or None), True))
            for call, use in zip(calls, turn.tool_calls, strict=True):
                sent = vf.ToolMessage(tool_call_id=call.id, content=use.result, name=use.name)
                said.append((sent, False))
        return said


def load(env_id: str, arguments: Mapping[str, Any], version: str, limit: int) -> TasksetEnvironment:
    """Raises ImportRefused."""
    vf: Any = importlib.import_module("verifiers.v1")
    try:
        kind = vf.environment_class(env_id)
        taskset = vf.load_taskset(vf.taskset_config_type(env_id)(id=env_id, **arguments))
    except Exception as error:
        raise ImportRefused(f"verifiers does not load {env_id!r}: {error}") from error
    if kind is not vf.SingleAgentEnv:
        raise ImportRefused(f"{env_id} is a {kind.__name__}, which has a run of its own", _WAY_OUT)
    if not taskset.bounded and not limit:
        raise ImportRefused(f"{env_id} has tasks without end", "give --limit 1000")
    return TasksetEnvironment(vf, taskset, env_id, version, limit or MAX_TASKS)


def _check_kind(vf: Any, kind: Any, name: str) -> None:
    if kind.NEEDS_CONTAINER:
        raise ImportRefused(f"tasks of {name} need a container (NEEDS_CONTAINER)", _WAY_OUT)
    for method in ("setup", "finalize", "stage_verifier"):
        if getattr(kind, method) is not getattr(vf.Task, method):
            raise ImportRefused(f"tasks of {name} have a {method} of their own, in a runtime", _WAY_OUT)
    if discovered := [one for one in dir(kind) if getattr(getattr(kind, one, None), "intercept", False)]:
        raise ImportRefused(f"tasks of {name} rewrite requests ({discovered[0]})", "leave @intercept out")


def _check_task(task: Any, name: str) -> None:
    if task.data.image or task.data.skills:
        raise ImportRefused(f"{name} needs {'an image' if task.data.image else 'skills'}", _WAY_OUT)
    if task.data.prompt is None:
        raise ImportRefused(f"{name} has no prompt: its user opens the conversation", _WAY_OUT)
    if stops := task.hooks("stop"):
        raise ImportRefused(
            f"{name} ends by its own rule ({stops[0].__name__})",
            "leave @stop out: the runner's budgets end it",
        )
    for function in (*task.hooks("reward"), *task.hooks("metric")):
        runtime = inspect.signature(function).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            raise ImportRefused(f"{name}: {function.__name__} reads a runtime", _WAY_OUT)


def _weights(task: Any) -> Sequence[float]:
    functions = [float(getattr(one, "_vf_weight", 1.0)) for one in task.hooks("reward")]
    return [*functions, *(float(one.config.weight) for one in task.plugged_judges())]


def _content(task: Any) -> Any:
    """What the task holds, without its place in the taskset."""
    return task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True)
