"""Tool calls as newer Qwen models write them (Qwen3-Coder, Qwen3.5): tags around bare values.

    <function=search><parameter=service>
    checkout
    </parameter></function>

A value has no type of its own: that of the tool's schema decides, where the tool is known. Output is hostile:
one pass, and nothing raises but Malformed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

FUNCTION: Final = "<function="
_PARAMETER: Final = "<parameter="
_END_FUNCTION, _END_PARAMETER = "</function>", "</parameter>"
_MAX_NUMBER_CHARS: Final = 400
"""Python reads no longer number."""

Tools = Sequence[Mapping[str, Any]]
"""OpenAI function specs."""


class Malformed(Exception):
    """A tool call that cannot be used; its message goes back to the policy."""


def tagged_call(body: str, tools: Tools = ()) -> dict[str, Any]:
    """`{"name", "arguments"}` of what stands between `<tool_call>` and its end. Raises Malformed."""
    name, end, rest = body.strip().removeprefix(FUNCTION).partition(">")
    inside, closed, after = rest.rpartition(_END_FUNCTION)
    if not end or not closed or after.strip():
        raise Malformed(f"{FUNCTION}…> without {_END_FUNCTION} at its end")
    types = _types_of(name.strip(), tools)
    arguments: dict[str, Any] = {}
    for key, text in _parameters(inside):
        if key in arguments:
            raise Malformed(f"parameter {key!r} is given twice")
        arguments[key] = _value(text, types.get(key))
    return {"name": name.strip(), "arguments": arguments}


def _parameters(inside: str) -> Iterator[tuple[str, str]]:
    *pieces, last = inside.split(_END_PARAMETER)
    for piece in pieces:
        begun = piece.lstrip()
        if not begun.startswith(_PARAMETER):
            raise Malformed(_misplaced(begun))
        key, end, text = begun.removeprefix(_PARAMETER).partition(">")
        if not end:
            raise Malformed(f"{_PARAMETER}{key[:40]} without > at its end")
        yield key.strip(), text.removeprefix("\n").removesuffix("\n")
    if left := last.strip():
        key = left.removeprefix(_PARAMETER).partition(">")[0][:40]
        is_open = left.startswith(_PARAMETER)
        raise Malformed(f"{_PARAMETER}{key}> without {_END_PARAMETER}" if is_open else _misplaced(left))


def _misplaced(text: str) -> str:
    return f"{text[:40]!r} stands where {_PARAMETER}NAME> or {_END_FUNCTION} belongs"


def _types_of(name: str, tools: Tools) -> Mapping[str, frozenset[str]]:
    """The JSON types that each argument of a tool may have; none where its schema says nothing."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: _types(schema) for key, schema in properties.items() if isinstance(schema, Mapping)}
    return {}


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = schema.get("type", ())
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _types(choice)
    if all(isinstance(one, str) for one in schema.get("enum", (0,))):
        found.add("string")
    return frozenset(found)


def _value(text: str, types: frozenset[str] | None) -> Any:
    """Text where only text is allowed, else JSON where it is some. Without a known type a number, a list or
    an object is taken for what it looks like."""
    if types is not None and set(types) == {"string"}:
        return text
    if len(text) > _MAX_NUMBER_CHARS and text.lstrip("-").isdigit():
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    is_text = isinstance(value, str) or (
        bool(types) and _kind_of(value) not in _widened(types or frozenset())
    )
    return text if is_text and "string" in (types or {"string"}) else value


def _widened(types: frozenset[str]) -> frozenset[str]:
    return types | {"integer"} if "number" in types else types


def _kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}
    return kinds.get(type(value), "object" if isinstance(value, dict) else "string")
