"""A player that follows a script: a JSONL file with one turn a line, or a function of a Python file."""

import inspect
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from upcycle.errors import UpcycleError
from upcycle.harness import AssistantTurn
from upcycle.harness.chat import ChatReply, Messages
from upcycle.harness.parsing import read_message, read_turn
from upcycle.modules import load_module
from upcycle.playing.errors import PlayerFailed, PlayRefused
from upcycle.raised import RAISED, exit_call
from upcycle.task_rows import Task
from upcycle.wording import amount

ReplyFunction = Callable[[Task, list[dict[str, Any]]], Any]
"""Task and conversation to the next turn: text, or an object as `turn_of` reads it. Plain or async."""
FUNCTION: Final = "reply"
"""Name of the function that a Python script is asked for, where none is named."""
_FIELDS: Final = frozenset({"text", "tool_calls", "role", "content"})
_FORMS: Final = (
    'a turn is "text", {"text": …, "tool_calls": [{"name": …, "arguments": {…}}]}, or an assistant message'
)


class LinesPlayer:
    """Says the turns of a file in order."""

    def __init__(self, path: Path, turns: Sequence[AssistantTurn]) -> None:
        self._path = path
        self._turns = list(turns)
        self._next = 0

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """The next line. Raises PlayerFailed when there is none."""
        if self._next >= len(self._turns):
            last = str(messages[-1].get("content", ""))
            raise PlayerFailed(
                f"{self._path} has {amount(len(self._turns), 'turn')}, and the episode wants another one "
                f"after {messages[-1]['role']}: {last!r:.160}",
                "end the script with a plain final answer",
            )
        self._next += 1
        return ChatReply(self._turns[self._next - 1])


class FunctionPlayer:
    """Asks a function `reply(task, messages)`, plain or async, for each turn."""

    def __init__(self, function: ReplyFunction, task: Task, where: str) -> None:
        self._function = function
        self._task = task
        self._where = where

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """What the function returns. Raises PlayerFailed for what is no turn, and for what it raises."""
        try:
            value = self._function(self._task, [dict(message) for message in messages])
            if inspect.isawaitable(value):
                value = await value
        except RAISED as error:
            raise PlayerFailed(f"{self._where} raised {_raised(error)}") from error
        try:
            return ChatReply(turn_of(value))
        except ValueError as error:
            raise PlayerFailed(f"{self._where} returned {error}", _FORMS) from error


def script_player(source: str, task: Task) -> LinesPlayer | FunctionPlayer:
    """From `turns.jsonl`, `player.py` or `player.py:function`. Raises PlayRefused and UnknownName."""
    name, _, function = source.partition(".py:")
    if function or source.endswith(".py"):
        path = Path(f"{name}.py") if function else Path(source)
        return _from_python(path, function or FUNCTION, task)
    path = Path(source)
    if not path.is_file():
        raise PlayRefused(f"no such script: {path}", "give a .jsonl file, or a player.py[:function]")
    turns = [_line(line, f"{path}:{number}") for number, line in _lines(path)]
    if not turns:
        raise PlayRefused(f"{path} has no turn", _FORMS)
    return LinesPlayer(path, turns)


def turn_of(value: Any) -> AssistantTurn:
    """A turn as a script writes it. Raises ValueError saying what it is instead."""
    if isinstance(value, str):
        return read_turn(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"a value of type {type(value).__name__}")
    unknown = sorted(set(value) - _FIELDS)
    if unknown or not value:
        raise ValueError(f"an object with unknown field {unknown[0]!r}" if unknown else "an empty object")
    if value.get("role", "assistant") != "assistant":
        raise ValueError(f"a message of role {value['role']!r}")
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"tool_calls of type {type(calls).__name__}")
    text = value.get("text", value.get("content"))
    return read_message({"content": text, "tool_calls": list(map(_row, calls))})


def _row(call: Any) -> Any:
    if isinstance(call, Mapping) and "name" in call:
        return {"function": {"name": call["name"], "arguments": call.get("arguments", {})}}
    return call


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlayRefused(f"script {path} cannot be read: {error}") from error
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _line(line: str, where: str) -> AssistantTurn:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PlayRefused(f"{where} is not JSON: {error}", _FORMS) from error
    try:
        return turn_of(value)
    except ValueError as error:
        raise PlayRefused(f"{where} is {error}", _FORMS) from error


def _raised(error: BaseException) -> str:
    """`KeyError: 'x' at player.py:3`, the innermost line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = exit_call(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return f"{said} at {last.filename}:{last.lineno}"


def _from_python(path: Path, name: str, task: Task) -> FunctionPlayer:
    try:
        function = getattr(load_module(path), name, None)
    except UpcycleError:
        raise
    except Exception as error:
        raise PlayRefused(f"{path} cannot be loaded: {_raised(error)}") from error
    if not callable(function):
        raise PlayRefused(
            f"{path} has no function {name!r}",
            f"write def {name}(task, messages), or name another: {path}:NAME",
        )
    try:
        inspect.signature(function).bind(task, [])
    except TypeError as error:
        raise PlayRefused(f"{path}:{name} cannot be called with (task, messages): {error}") from error
    return FunctionPlayer(function, task, f"{path}:{name}")
