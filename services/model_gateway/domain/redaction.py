"""Redaction of captured calls: what the operator's function is shown, and what its answer makes of a call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from model_gateway.domain.sessions import RecordedCall, SampledChoice, messages_of

_UNSEEN: Final = (
    *("chat_template_kwargs", "suffix", "tokens", "prompt_token_ids", "continuation_from"),
    "return_tokens_as_token_ids",
)
"""Fields by which tokens may say what none of the shown texts does."""


class BadRedaction(Exception):
    """The function's answer is no call. Has no content of it."""


def shown(call: RecordedCall) -> dict[str, Any]:
    """All text that would be stored of a call. `sampled` is the text of the sampled tokens, with markers and
    stop strings that `text` lacks."""
    return {
        "model": call.model,
        "messages": messages_of(call.body),
        "tools": call.body.get("tools") or [],
        "answers": [
            {
                "text": one.text,
                "reasoning": one.reasoning,
                "tool_calls": list(one.tool_calls.values()),
                "sampled": "".join(one.token_texts),
            }
            for one in call.choices
        ],
    }


def redacted(call: RecordedCall, before: Mapping[str, Any], after: Any) -> RecordedCall:
    """The call as the function returned it. Its tokens stay where nothing was changed and all that they say
    was shown: they are text, too. Raises BadRedaction."""
    if after == before and not _says_more(call):
        return call
    _check(before, after)
    body = {"messages": after["messages"], "tools": after["tools"]}
    pairs = zip(call.choices, after["answers"], strict=True)
    return replace(call, body=body, choices=[_without_tokens(one, said) for one, said in pairs])


def _says_more(call: RecordedCall) -> bool:
    has_ids = not isinstance(call.body.get("prompt", ""), str)
    unnamed = any(one.token_ids and len(one.token_texts) != len(one.token_ids) for one in call.choices)
    return has_ids or unnamed or any(call.body.get(name) for name in _UNSEEN)


def _without_tokens(one: SampledChoice, said: Mapping[str, Any]) -> SampledChoice:
    return SampledChoice(
        one.index,
        text=said["text"],
        reasoning=said["reasoning"],
        tool_calls=dict(enumerate(said["tool_calls"])),
        finish_reason=one.finish_reason,
    )


def _check(before: Mapping[str, Any], after: Any) -> None:
    """Raises BadRedaction."""
    if not isinstance(after, Mapping) or set(after) != set(before):
        raise BadRedaction(f"it is no object with {', '.join(before)}")
    for name in ("messages", "tools", "answers"):
        given = after[name]
        if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
            raise BadRedaction(f"its {name} are no list of objects")
    if len(after["answers"]) != len(before["answers"]):
        raise BadRedaction("it has another number of answers")
    for answer in after["answers"]:
        if not all(isinstance(answer.get(name), str) for name in ("text", "reasoning")):
            raise BadRedaction("an answer has no text or no reasoning")
        calls = answer.get("tool_calls")
        if not isinstance(calls, list) or not all(map(_is_tool_call, calls)):
            raise BadRedaction("an answer's tool_calls are no list of id, name and arguments")


def _is_tool_call(call: Any) -> bool:
    return isinstance(call, Mapping) and all(
        isinstance(call.get(name), str) for name in ("id", "name", "arguments")
    )
