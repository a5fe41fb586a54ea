"""Environments that `verifiers.load_environment` makes: SingleTurnEnv, ToolEnv and StatefulToolEnv."""

import copy
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.importers.errors import ImportRefused
from upcycle.importers.verifiers.hosting import (
    EVAL,
    TRAIN,
    ForeignPlay,
    Scored,
    ScoredFunction,
    not_reached,
    with_calls,
)
from upcycle.transcripts import Answer, Turn

MODEL: Final = "upcycle"
_WAY_OUT: Final = "serve a SingleTurnEnv or a ToolEnv"


class ClassicEnvironment:
    """vf: the package. Raises ImportRefused for what the control channel cannot say."""

    def __init__(self, vf: Any, env: Any, name: str, limit: int) -> None:
        _check_kind(vf, env, name)
        self.name, self.version = name, str(vf.__version__)
        self._types: Any = importlib.import_module("verifiers.types")
        self._env, self._client = env, _no_client()
        self.rows: Mapping[str, Sequence[Any]] = dict(_splits(env, limit))
        for split, rows in self.rows.items():
            _check_rows(split, rows)
        functions = list(_functions(env.rubric))
        self.weights = [weight for _, _, weight in functions]
        self._raised: list[tuple[str, Exception]] = []
        for rubric, at, _ in functions:
            rubric.funcs[at] = _watched(rubric.funcs[at], self._raised)

    async def tools(self) -> Sequence[ToolSpec]:
        """Those of the environment."""
        return [
            ToolSpec(one.name, one.description or "", dict(one.parameters))
            for one in self._env.tool_defs or ()
        ]

    def play(self, split: str, row: int) -> ForeignPlay:
        """With a state of its own."""
        self._raised.clear()
        return _Play(self._env, self._types, self._client, self.rows[split][row], self._raised)


class _Play:
    def __init__(
        self, env: Any, types: Any, client: Any, row: Any, raised: list[tuple[str, Exception]]
    ) -> None:
        self._env, self._types, self._client, self._row, self._raised = env, types, client, row, raised
        self._state: Any = None
        self._said: list[Any] = []

    async def begin(self) -> list[dict[str, Any]]:
        """Its own preparation of a state."""
        made = await self._env.init_state(copy.deepcopy(self._row), self._client, MODEL)
        self._state = await self._env.setup_state(made) or made
        return [_plain(message) for message in self._state["prompt"]]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """As if a message had only this call."""
        call = self._types.ToolCall(id=f"call-{len(self._said)}", name=name, arguments=json.dumps(arguments))
        message = self._types.AssistantMessage(content="", tool_calls=[call])
        replies = await self._env.env_response([*self._state["prompt"], *self._said, message], self._state)
        self._said += [message, *replies]
        return ToolResult("\n".join(_text(one.content) for one in replies))

    async def score(self, answer: Answer) -> Scored:
        """Clean up as after a rollout, then ask the rubric."""
        state, rubric = self._state, self._env.rubric
        state["trajectory"] = list(self._steps(answer.trajectory.turns or (Turn(str(answer)),)))
        state["is_completed"], state["stop_condition"] = True, "answered"
        await self._env.cleanup(state)
        if not state.get("completion"):
            await self._env.render_completion(state)
        await rubric.score_rollout(state)
        await rubric.cleanup(state)
        for _, error in self._raised:
            if (failed := not_reached(error)) is not None:
                raise failed from error
        said, functions = state["metrics"], []
        for owner, at, weight in _functions(rubric):
            name = str(getattr(owner.funcs[at], "__name__", f"function {at}"))
            if name in said:
                functions.append(ScoredFunction(name, float(said[name]), float(weight)))
        raised = {name: f"{type(error).__name__}: {error}"[:200] for name, error in self._raised}
        return Scored(float(state["reward"]), functions, {"raised": raised} if raised else {})

    def _steps(self, turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
        """One a turn, as a rollout records it; there are no tokens."""
        types, before = self._types, list(self._state["prompt"])
        for turn, calls in with_calls(turns, types.ToolCall):
            said = types.AssistantMessage(content=turn.text, tool_calls=calls or None)
            yield {
                "prompt": list(before),
                "completion": [said],
                "response": None,
                "tokens": None,
                "reward": None,
                "advantage": None,
                "is_truncated": False,
                "trajectory_id": self._state["trajectory_id"],
                "extras": {},
            }
            results = zip(calls, turn.tool_calls, strict=True)
            sent = [types.ToolMessage(tool_call_id=call.id, content=use.result) for call, use in results]
            before += [said, *sent]


def load(vf: Any, env_id: str, arguments: Mapping[str, Any], limit: int) -> ClassicEnvironment:
    """Raises ImportRefused."""
    try:
        env = vf.load_environment(env_id, **arguments)
    except Exception as error:
        raise ImportRefused(f"verifiers does not load {env_id!r}: {error}") from error
    return ClassicEnvironment(vf, env, env_id, limit)


def _check_kind(vf: Any, env: Any, name: str) -> None:
    kind = type(env)
    if not isinstance(env, vf.MultiTurnEnv):
        raise ImportRefused(f"{name} is a {kind.__name__}, which is no conversation of one agent", _WAY_OUT)
    if env.requires_group_rollouts:
        raise ImportRefused(
            f"{name}: its rubric compares the rollouts of a group, and a task is graded alone"
        )
    is_tools = isinstance(env, vf.ToolEnv)
    known = [one.env_response for one in (vf.ToolEnv, vf.StatefulToolEnv)]
    if not isinstance(env, vf.SingleTurnEnv) and not (is_tools and kind.env_response in known):
        raise ImportRefused(
            f"{name} is a {kind.__name__}, which answers each turn of the agent by its own env_response; the "
            "control channel has tools, and one answer",
            _WAY_OUT,
        )
    for method in ("get_prompt_messages", "render_completion"):
        own = getattr(kind, method)
        if own not in [getattr(one, method) for one in (vf.MultiTurnEnv, vf.SingleTurnEnv)]:
            raise ImportRefused(f"{name} is a {kind.__name__}, which writes its history by its own {method}")


def _splits(env: Any, limit: int) -> Iterator[tuple[str, Sequence[Any]]]:
    for split, build in ((TRAIN, env.build_dataset), (EVAL, env.build_eval_dataset)):
        rows = build()
        if rows is not None:
            yield split, [dict(row) for row in islice(rows, limit)]


def _check_rows(split: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        info = row.get("info")
        if isinstance(info, str):
            info = json.loads(info or "{}")
        if isinstance(info, Mapping) and info.get("tool_defs"):
            raise ImportRefused(f"row {number} of {split} has tools of its own (info.tool_defs)", _WAY_OUT)


def _functions(rubric: Any) -> Iterator[tuple[Any, int, float]]:
    """Each function of a rubric and of those in it: its rubric, place and weight."""
    for inner in getattr(rubric, "rubrics", None) or ():
        yield from _functions(inner)
    for at, weight in enumerate(rubric.weights if hasattr(rubric, "funcs") else ()):
        yield rubric, at, float(weight)


def _watched(function: Callable[..., Any], raised: list[tuple[str, Exception]]) -> Callable[..., Any]:
    """The rubric counts a function that raises as 0: whether a server failed is to be known."""

    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            value = function(*arguments, **named)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            raised.append((getattr(function, "__name__", "function"), error))
            raise

    return watched


def _no_client() -> Any:
    """A state wants one; no rollout of ours asks it."""
    base: Any = importlib.import_module("verifiers.clients").Client
    kind = type("NoClient", (base,), {})
    kind.__abstractmethods__ = frozenset()  # type: ignore[attr-defined] # nothing is called on it
    return object.__new__(kind)


def _plain(message: Any) -> dict[str, Any]:
    """A message as chat completions have it."""
    said = {"role": message.role, "content": _text(message.content)}
    calls = getattr(message, "tool_calls", None)
    if calls:
        said["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in calls
        ]
    if called := getattr(message, "tool_call_id", None):
        said["tool_call_id"] = called
    return said


def _text(content: Any) -> str:
    """Raises ImportRefused for an image."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_parts(content))


def _parts(content: Iterable[Any]) -> Iterator[str]:
    for part in content:
        found = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
        if not isinstance(found, str):
            raise ImportRefused("a message holds a part that is no text, and no model here sees it")
        yield found
