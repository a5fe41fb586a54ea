"""Guidance: what a scenario says in a second attempt at a task that was failed. It ends the prompt."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import ScenarioError
from upcycle.raised import RAISED, deed
from upcycle.transcripts import Answer, Transcript

KINDS: Final = ("plan", "feedback", "hint", "text")
"""Of parts of guidance, in the order in which they stand in the prompt."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """What an agent reads in a second attempt, in parts: a plan for the task, feedback on the failed attempt,
    a hint about the environment. At least one is not blank. text: what a function that returned a plain text
    said, of which the kind is not known."""

    plan: str = ""
    feedback: str = ""
    hint: str = ""
    text: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """Those that are not blank, by their kind."""
        return {kind: said for kind in KINDS if (said := getattr(self, kind)).strip()}

    def __str__(self) -> str:
        return "\n\n".join(self.parts.values())


GuidanceFunction = Callable[..., str | Guidance | Awaitable[str | Guidance]]


def attempt_of(row: Mapping[str, Any]) -> Answer:
    """The attempt in `{"answer", "trajectory"}`: its answer, with all that led to it."""
    return Answer(row.get("answer", ""), Transcript.from_json(row.get("trajectory") or {}))


async def guidance_of(
    function: GuidanceFunction, scenario: str, failed: Answer, arguments: Mapping[str, Any]
) -> Guidance:
    """What the function says after this attempt. Raises ScenarioError where it raises or says nothing."""
    try:
        said = function(failed, **arguments)
        given = await said if inspect.isawaitable(said) else said
    except RAISED as error:
        raise ScenarioError(f"the guidance of scenario {scenario!r} {deed(error)}") from error
    guidance = Guidance(text=given) if isinstance(given, str) else given
    if not _is_said(guidance):
        raise ScenarioError(
            f"the guidance of scenario {scenario!r} returned {given!r:.80}, not a text or Guidance with one",
            "return what the agent shall read in its second attempt",
        )
    return guidance


def _is_said(guidance: Any) -> bool:
    """Whether it is a Guidance whose parts are all texts, at least one of them not blank."""
    if not isinstance(guidance, Guidance):
        return False
    return all(isinstance(getattr(guidance, kind), str) for kind in KINDS) and bool(guidance.parts)


def parts_in(reply: Mapping[str, Any]) -> dict[str, str]:
    """The parts of guidance in an environment's reply, by kind; `text` where an older environment names no
    kinds."""
    said = str(reply.get("guidance") or "")
    given = reply.get("guidance_parts")
    if not isinstance(given, Mapping):
        return {"text": said} if said else {}
    return {kind: str(given[kind]) for kind in KINDS if given.get(kind)}


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
