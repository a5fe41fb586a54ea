"""How the harness's conversation is written for a server, and its answer read: a dialect for each API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from upcycle.harness.chat import ChatReply, Messages
from upcycle.harness.parsing import read_message
from upcycle.images import images_in


class NoTurn(Exception):
    """What a server sent is no turn; the player says of which server."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """As the server counts them."""

    prompt: int = 0
    completion: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt + other.prompt, self.completion + other.completion)


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn. content: the turn in the server's own form, which it wants back in the next request, such as
    signed reasoning; empty where nothing is lost without it."""

    reply: ChatReply
    tokens: Tokens
    content: list[Any] = field(default_factory=list)


Kept = Mapping[int, list[Any]]
"""The turns in the server's own form, by their place among the messages."""


class Dialect(Protocol):
    """One API, for one model."""

    model: str

    @property
    def path(self) -> str:
        """Where turns are asked for."""
        ...

    @property
    def model_path(self) -> str:
        """Where the server says whether it has the model."""
        ...

    def body(
        self, messages: Messages, tools: Messages, max_tokens: int, sampling: Mapping[str, float], kept: Kept
    ) -> dict[str, Any]:
        """The request. sampling: temperature, top_p, where they are given."""
        ...

    def learn(self, refusal: str) -> None:
        """Write requests in another form from here on, where a 400 with this text asks for one. Episodes
        share a dialect: a request that was refused is worth another try when its body would be another
        one now."""
        ...

    def read(self, answer: Any) -> Answered:
        """The turn in an answer. Raises NoTurn."""
        ...

    def models_in(self, answer: Any) -> list[str]:
        """The models that the answer of `model_path` names; empty where it is about this model alone."""
        ...


class OpenAIChat:
    """POST /chat/completions."""

    path = "/chat/completions"
    model_path = "/models"

    def __init__(self, model: str) -> None:
        self.model = model
        self._tokens_field = "max_tokens"

    def body(
        self, messages: Messages, tools: Messages, max_tokens: int, sampling: Mapping[str, float], kept: Kept
    ) -> dict[str, Any]:
        """Messages and tools are of this form already; but a tool's message holds no image, so that images
        follow the results of a turn in a message of the user."""
        shown = _openai_messages(messages)
        body = {"model": self.model, "messages": shown, **sampling, self._tokens_field: max_tokens}
        return {**body, "tools": list(tools)} if tools else body

    def learn(self, refusal: str) -> None:
        """Newer models know only max_completion_tokens."""
        if "max_completion_tokens" in refusal:
            self._tokens_field = "max_completion_tokens"

    def read(self, answer: Any) -> Answered:
        """Raises NoTurn."""
        try:
            choice = answer["choices"][0]
            message, was_cut = choice["message"], choice.get("finish_reason") == "length"
            usage = answer.get("usage") or {}
            num_tokens = int(usage.get("total_tokens") or 0)
            reply = ChatReply(read_message(message), was_cut, num_tokens)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise NoTurn(f"no chat completion: {answer!s:.300}") from error
        return Answered(reply, tokens_of(usage, "prompt_tokens", "completion_tokens"))

    def models_in(self, answer: Any) -> list[str]:
        """The ids of the list."""
        rows = answer.get("data") if isinstance(answer, Mapping) else None
        return [str(row["id"]) for row in rows or () if isinstance(row, Mapping) and "id" in row]


def _openai_messages(messages: Messages) -> list[Any]:
    rows: list[Any] = []
    seen: list[Any] = []
    for message in messages:
        if message["role"] != "tool" and seen:
            rows.append({"role": "user", "content": seen})
            seen = []
        images = images_in(message["content"]) if message["role"] == "tool" else ()
        rows.append({**message, "content": text_in(message["content"])} if images else message)
        seen = [*seen, *(image.to_part() for image in images)]
    return [*rows, {"role": "user", "content": seen}] if seen else rows


def tokens_of(usage: Any, prompt: str, *completions: str) -> Tokens:
    """The named counts; 0 for what is missing or no count."""

    def count(name: str) -> int:
        value = usage.get(name) if isinstance(usage, Mapping) else 0
        return value if isinstance(value, int) and value > 0 else 0

    return Tokens(count(prompt), sum(map(count, completions)))


def text_in(content: Any) -> str:
    """The text of a message's content, whole or in parts."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return "".join(text for text in texts if isinstance(text, str))


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Name, description and parameters of an OpenAI tool."""
    return {"description": "", "parameters": {"type": "object", "properties": {}}, **tool["function"]}
