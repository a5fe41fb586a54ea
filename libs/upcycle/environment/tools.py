"""Tools: typed functions an agent may call, and how their results become text."""

import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from upcycle.environment.schema import CallSchema, call_schema
from upcycle.errors import ToolFailed


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent reads. is_error: the tool refused or raised, and text says why."""

    text: str
    is_error: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. parameters: JSON schema of its argument object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The row of `tools.list`."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


class Tool(Protocol):
    """Anything an agent can call by name."""

    @property
    def spec(self) -> ToolSpec: ...

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises ArgumentsInvalid or ToolFailed; the caller turns both into an error result."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A Python function as a tool. A plain function runs on the event loop, beside the scenario's own code,
    so that objects bound to one thread (a SQLite connection) can be shared between them."""

    function: Callable[..., Any]
    schema: CallSchema

    @classmethod
    def declare(cls, function: Callable[..., Any], name: str | None = None) -> "FunctionTool":
        """Raises DefinitionError when the function's signature has no JSON form."""
        return cls(function, call_schema(function, name=name))

    @property
    def spec(self) -> ToolSpec:
        """Name, description and parameters for a model."""
        return ToolSpec(self.schema.name, self.schema.description, self.schema.parameters)

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments, run the function, render what it returned."""
        checked = self.schema.check(arguments)
        try:
            value: Any = self.function(**checked)
            if inspect.isawaitable(value):
                value = await _awaited(value)
        except Exception as error:
            raise ToolFailed(f"{self.schema.name}: {type(error).__name__}: {error}") from error
        return value if isinstance(value, ToolResult) else ToolResult(text_of(value, self.schema.name))


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def text_of(value: Any, name: str) -> str:
    """A tool's return value as the text an agent reads: strings as they are, the rest as compact JSON.

    Raises ToolFailed for a value that JSON cannot carry.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(
            value, ensure_ascii=False, separators=(", ", ": "), default=_json_form, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise ToolFailed(f"{name}: result is not JSON: {error}", "return str or plain JSON types") from error


def _json_form(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def bounded_text(text: str, max_bytes: int | None) -> tuple[str, bool]:
    """(text, whether it was cut): at most max_bytes of UTF-8, with a note at the end that says what is
    missing.
    """
    if max_bytes is None or len(text) * 4 <= max_bytes:
        return text, False
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return text, False
    note = f"\n[truncated: {len(data)} bytes, limit {max_bytes}; ask for less]"
    kept = data[: max(0, max_bytes - len(note))].decode("utf-8", "ignore")
    return kept + note, True
