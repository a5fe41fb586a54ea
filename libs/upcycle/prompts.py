"""The prompts that scenarios yield: text, or messages, within what the control channel carries."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from upcycle.errors import ScenarioError, UpcycleError
from upcycle.images import Image, checked_images, images_in

Prompt = str | list[dict[str, Any]]

MAX_PROMPT_BYTES: Final = 15 * 1024 * 1024
"""As JSON: a frame of the control channel, of at most 16 MiB, carries it."""
_MOST_A_CHARACTER: Final = 6
"""Bytes of one character in JSON: \\u0001."""


def prompt_of(value: Any, named: str) -> Prompt:
    """Check that a yielded value is a prompt: text, or messages `[{"role", "content"}]`. named: its scenario.
    Raises ScenarioError.
    """
    if isinstance(value, str):
        return value
    rows = value if isinstance(value, Sequence) and not isinstance(value, bytes) else ()
    messages = [dict(row) for row in rows if isinstance(row, Mapping) and "role" in row and "content" in row]
    if messages and len(messages) == len(rows):
        try:
            return [{**row, "content": _content(row["content"])} for row in messages]
        except (ValueError, UpcycleError) as error:
            raise ScenarioError(f"{named}: its prompt: {error}") from error
    raise ScenarioError(
        f"{named}: first yield is of type {type(value).__name__}, not a prompt",
        "yield a str or a list of {'role': …, 'content': …}",
    )


def bounded_prompt(prompt: Prompt, named: str) -> Prompt:
    """Raises ScenarioError for one that no frame of the control channel carries."""
    if isinstance(prompt, str) and len(prompt) * _MOST_A_CHARACTER < MAX_PROMPT_BYTES:
        return prompt
    size = len(json.dumps(prompt, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    if size > MAX_PROMPT_BYTES:
        raise ScenarioError(
            f"{named}: its prompt has {size} bytes as JSON, limit {MAX_PROMPT_BYTES}",
            "ask with less, and let a tool show the rest",
        )
    return prompt


def _content(content: Any) -> Any:
    """An Image becomes a part of the message. Raises ValueError and ToolFailed for what is no image."""
    shown = [content] if isinstance(content, Image) else content
    if not isinstance(shown, list | tuple):
        return content
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in shown]
    parts = [one.to_part() if isinstance(one, Image) else one for one in parts]
    checked_images(images_in(parts))
    return parts
