"""Whether an answer of OpenAI's dialect has the types that all that reads it relies on: other dialects, the
record of a session, counts of tokens."""

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final = {str: "a string", int: "an integer", dict: "an object", list: "an array", float: "a number"}
_CHOICE: Final = {"index": int, "finish_reason": str, "text": str, "logprobs": dict}
_MESSAGE: Final = {"content": str, "reasoning": str, "reasoning_content": str, "tool_calls": list}
_CALL: Final = {"index": int, "id": str, "function": dict}
_FUNCTION: Final = {"name": str, "arguments": str}
_LOGPROBS: Final = {"content": list, "token_logprobs": list, "tokens": list}
_ENTRY: Final = {"token": str, "logprob": float}


def check_choices(said: dict[str, Any]) -> None:
    """Of a reply or a chunk. Content in parts becomes its text, and versions are left out: a provider has no
    versions of ours. Raises ValueError, which names the place."""
    choices = said.get("choices")
    for number, choice in enumerate([] if choices is None else _of(list, choices, "choices")):
        place = f"choices[{number}]"
        _check(choice, _CHOICE, place)
        choice.pop("weight_versions", None)
        for name in ("message", "delta"):
            if choice.get(name) is not None:
                _check_message(choice[name], f"{place}.{name}")
        if choice.get("logprobs") is not None:
            _check_logprobs(choice["logprobs"], f"{place}.logprobs")


def _check_message(message: Any, place: str) -> None:
    content = _of(dict, message, place).get("content")
    if isinstance(content, list):
        message["content"] = "".join(_text_of(part, f"{place}.content") for part in content)
    _check(message, _MESSAGE, place)
    for call in message.get("tool_calls") or ():
        _check(call, _CALL, f"{place}.tool_calls")
        if call.get("function") is not None:
            _check(call["function"], _FUNCTION, f"{place}.tool_calls.function")


def _text_of(part: Any, place: str) -> str:
    """Empty for a part that is no text, such as a thought."""
    text = _of(dict, part, place).get("text")
    return str(_of(str, text, f"{place}.text")) if part.get("type") == "text" else ""


def _check_logprobs(logprobs: Mapping[str, Any], place: str) -> None:
    _check(logprobs, _LOGPROBS, place)
    for entry in logprobs.get("content") or ():
        _check(entry, _ENTRY, f"{place}.content")
        if entry.keys() < _ENTRY.keys():
            raise ValueError(f"{place}.content has an entry without {' or '.join(_ENTRY)}")


def _check(said: Any, types: Mapping[str, type], place: str) -> None:
    for name, value in _of(dict, said, place).items():
        if value is not None and name in types:
            _of(types[name], value, f"{place}.{name}")


def _of(kind: type, value: Any, place: str) -> Any:
    is_kind = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    if not is_kind or (kind is int and value < 0):
        # Not what it is instead: that is shown beside it, without the key.
        raise ValueError(f"{place} is not {_TYPES[kind]}")
    return value
