"""Reading a sampled turn: free text and tool calls, as Hermes and Qwen3 write them (JSON) or as Qwen3.5 does
(tags). Output is hostile: nothing here raises."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from upcycle.harness.tagged_calls import FUNCTION, Malformed, Tools, tagged_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"
OPEN_REASONING, CLOSE_REASONING = "<think>", "</think>"
_CALL = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the policy asks for. `arguments` is plain JSON: finite numbers, valid UTF-8 strings."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """A sampled turn. With `parse_error` set there are no tool calls and `text` is the raw turn. reasoning:
    what came before it between the markers of the template; it is no part of `text`."""

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    parse_error: str | None = None
    reasoning: str = ""


def parse_turn(text: str, tools: Tools = ()) -> AssistantTurn:
    """The turn written in `text` (control tokens already removed). A malformed call becomes `parse_error`.
    tools: whose schemas give the arguments of calls in tags their types."""
    try:
        # Only up to the last CLOSE: from every OPEN after it the search would go to the end of the text.
        head, close, tail = text.rpartition(CLOSE)
        pieces = _CALL.split(head + close)
        calls = tuple(_parse_call(piece, tools) for piece in pieces[1::2])
        rest = "".join(pieces[::2]) + tail
        if OPEN in rest:
            raise Malformed(f"{OPEN} without {CLOSE}")
        if CLOSE in rest:
            raise Malformed(f"{CLOSE} without {OPEN}")
    except Malformed as error:
        return AssistantTurn(text=text, parse_error=str(error))
    return AssistantTurn(text=rest.strip() if calls else rest, tool_calls=calls)


def read_turn(text: str, tools: Tools = (), *, is_open: bool = False) -> AssistantTurn:
    """As `parse_turn`, with its reasoning apart: no call in it is made. is_open: the prompt opened it."""
    reasoning, rest = split_reasoning(text, is_open=is_open)
    return replace(parse_turn(rest, tools), reasoning=reasoning)


def split_reasoning(text: str, *, is_open: bool = False) -> tuple[str, str]:
    """(reasoning, the rest). Only what a turn begins with is reasoning. Left open it goes to the first tool
    call, or to the end."""
    begun = text.lstrip()
    if begun.startswith(OPEN_REASONING):
        begun = begun.removeprefix(OPEN_REASONING)
    elif not is_open:
        return "", text
    reasoning, close, rest = begun.partition(CLOSE_REASONING)
    if not close:
        reasoning, call, after = begun.partition(OPEN)
        rest = call + after
    return reasoning.strip(), rest.lstrip()


def with_reasoning(reasoning: str, text: str) -> str:
    """Both in one text, as templates write them."""
    return f"{OPEN_REASONING}\n{reasoning}\n{CLOSE_REASONING}\n\n{text}" if reasoning else text


def read_message(message: Mapping[str, Any]) -> AssistantTurn:
    """The turn in an assistant message of the OpenAI form; calls that its server left in the text are read
    from there. Never raises: what is malformed becomes `parse_error`, as in `parse_turn`."""
    said = read_turn(_text_of(message.get("content")))
    apart = _text_of(message.get("reasoning_content") or message.get("reasoning")).strip()
    said = replace(said, reasoning=apart or said.reasoning)
    rows = message.get("tool_calls") or ()
    if not rows:
        return said
    text = split_reasoning(_text_of(message.get("content")))[1]
    try:
        calls = tuple(_parse_row(row) for row in rows)
        return AssistantTurn(text.strip(), calls, reasoning=said.reasoning)
    except Malformed as error:
        spelled = [f"{OPEN}\n{_spelled(row)}\n{CLOSE}" for row in rows]
        whole = "\n".join([text, *spelled]).strip()
        return AssistantTurn(whole, parse_error=str(error), reasoning=said.reasoning)


def _text_of(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def _parse_row(row: Any) -> ToolCall:
    function = row.get("function") if isinstance(row, Mapping) else None
    if not isinstance(function, Mapping):
        raise Malformed("tool call has no function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _from_json(arguments or "{}")
    return _call_of({"name": function.get("name"), "arguments": {} if arguments is None else arguments})


def _spelled(row: Any) -> str:
    function = row.get("function") if isinstance(row, Mapping) else None
    if not isinstance(function, Mapping):
        return str(row)
    return f'{{"name": {json.dumps(function.get("name"))}, "arguments": {function.get("arguments")}}}'


def _parse_call(body: str, tools: Tools) -> ToolCall:
    is_tagged = body.lstrip().startswith(FUNCTION)
    return _call_of(tagged_call(body, tools) if is_tagged else _from_json(body))


def _from_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise Malformed("tool call is nested too deeply") from error
    except ValueError as error:
        raise Malformed(f"tool call is not JSON: {error}") from error


def _call_of(call: Any) -> ToolCall:
    if not isinstance(call, dict):
        raise Malformed(f"tool call is a JSON {type(call).__name__}, expected an object")
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise Malformed("tool call has no name")
    if not isinstance(arguments, dict):
        raise Malformed(f"arguments of {name!r} are {type(arguments).__name__}, expected an object")
    _require_plain(call)
    return ToolCall(name=name, arguments=arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise Malformed(f"tool call holds {name}, which is not JSON")


def _require_plain(call: dict[str, Any]) -> None:
    # `1e999` reads as inf and "\ud800" as a lone surrogate: neither survives JSON or protobuf downstream.
    try:
        json.dumps(call, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Malformed(f"tool call holds a value that cannot be sent on: {type(error).__name__}") from error
