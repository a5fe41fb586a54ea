"""A person at the keyboard: a line is the answer; `/tool name=value` calls a tool."""

import difflib
import json
import shlex
from collections.abc import Callable
from typing import Any, Final

from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.errors import PlayerFailed

HELP: Final = "a line is your final answer; /TOOL name=value … or /TOOL {json} calls a tool; /quit leaves"


class PersonPlayer:
    """Asks for lines until one is a turn."""

    def __init__(self, read_line: Callable[[], str], say: Callable[[str], None]) -> None:
        """read_line: raises EOFError at the end of the input. say: shows one line to the person."""
        self._read_line = read_line
        self._say = say

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """The person's next turn. Raises PlayerFailed when the person leaves."""
        names = [str(tool["function"]["name"]) for tool in tools]
        while True:
            try:
                line = self._read_line().strip()
            except EOFError:
                line = "/quit"
            if line == "/quit":
                raise PlayerFailed("the episode was left without an answer")
            if not line:
                continue
            if not line.startswith("/"):
                return ChatReply(AssistantTurn(line))
            try:
                return ChatReply(AssistantTurn("", (read_call(line, names),)))
            except ValueError as error:
                self._say(f"{error} ({HELP})")


def read_call(line: str, names: list[str]) -> ToolCall:
    """The call in `/search_logs service=payments page=2`; values are JSON, else text. Raises ValueError."""
    name, _, rest = line.removeprefix("/").partition(" ")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        known = f"did you mean /{near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
        raise ValueError(f"no tool {name!r}; {known}")
    rest = rest.strip()
    return ToolCall(name, _object(rest) if rest.startswith("{") else _pairs(rest))


def _object(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the arguments are not a JSON object: {error}") from error


def _pairs(text: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"argument {word!r} is not name=value")
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments
