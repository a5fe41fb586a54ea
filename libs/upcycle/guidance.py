"""Guidance: what a scenario says in a second attempt at a task that was failed. It ends the prompt."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from upcycle.errors import ScenarioError
from upcycle.raised import RAISED, deed
from upcycle.transcripts import Answer, Transcript

GuidanceFunction = Callable[..., str | Awaitable[str]]


def failed_attempt(row: Mapping[str, Any]) -> Answer:
    """The attempt in `{"answer", "trajectory"}`: its answer, with all that led to it."""
    return Answer(row.get("answer", ""), Transcript.from_json(row.get("trajectory") or {}))


async def guidance_of(
    function: GuidanceFunction, scenario: str, failed: Answer, arguments: Mapping[str, Any]
) -> str:
    """What the function says after this attempt. Raises ScenarioError where it raises or says nothing."""
    try:
        said = function(failed, **arguments)
        text = await said if inspect.isawaitable(said) else said
    except RAISED as error:
        raise ScenarioError(f"the guidance of scenario {scenario!r} {deed(error)}") from error
    if not isinstance(text, str) or not text.strip():
        raise ScenarioError(
            f"the guidance of scenario {scenario!r} returned {text!r:.80}, not a text",
            "return what the agent shall read in its second attempt",
        )
    return text


def guided_prompt(prompt: str | list[dict[str, Any]], guidance: str) -> str | list[dict[str, Any]]:
    """The prompt with the guidance at the end of its last message, if that is the user's, else after it."""
    if isinstance(prompt, str):
        return f"{prompt}\n\n{guidance}"
    *before, last = prompt
    if last["role"] != "user":
        return [*prompt, {"role": "user", "content": guidance}]
    content = last["content"]
    if isinstance(content, str):
        return [*before, {**last, "content": f"{content}\n\n{guidance}"}]
    return [*before, {**last, "content": [*content, {"type": "text", "text": guidance}]}]
