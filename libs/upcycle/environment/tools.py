"""Tools: typed functions an agent may call, and how their results become text."""

import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from upcycle.environment.schema import CallSchema, call_schema
from upcycle.errors import DefinitionError, ToolExited, ToolFailed
from upcycle.images import Image, checked_images
from upcycle.raised import deed
from upcycle.states import StateEntry

MAX_TOOL_S: Final = 86_400.0
"""The longest that a tool may ask for: no episode lasts longer."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent reads. is_error: the tool refused or raised, and text says why. state: of its
    environment after the call, where that declares one; no agent reads it. images: what an agent sees that
    has eyes; the text names each in its place."""

    text: str
    is_error: bool = False
    truncated: bool = False
    state: StateEntry | None = None
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it. parameters: JSON schema of its argument object. timeout_s: how long a call
    may take, where the tool says that itself; no model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What a model sees."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    def to_row(self) -> dict[str, Any]:
        """The row of `tools.list`."""
        own = {} if self.timeout_s is None else {"timeout_s": self.timeout_s}
        return {**self.to_json(), **own}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ToolSpec":
        """The inverse of `to_row`; raises what reading a row raises that another program wrote."""
        timeout_s = row.get("timeout_s")
        return cls(
            str(row["name"]),
            str(row["description"]),
            dict(row["parameters"]),
            None if timeout_s is None else checked_timeout(timeout_s, str(row["name"])),
        )


def checked_timeout(timeout_s: Any, name: str) -> float:
    """A tool's own limit. Raises DefinitionError."""
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= MAX_TOOL_S:
        raise DefinitionError(
            f"tool {name!r}: timeout_s is {timeout_s!r}", f"give seconds: above 0, at most {MAX_TOOL_S:g}"
        )
    return float(timeout_s)


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
    timeout_s: float | None = None

    @classmethod
    def declare(
        cls, function: Callable[..., Any], name: str | None = None, timeout_s: float | None = None
    ) -> "FunctionTool":
        """Raises DefinitionError when the function's signature has no JSON form, or timeout_s is none."""
        schema = call_schema(function, name=name)
        return cls(function, schema, None if timeout_s is None else checked_timeout(timeout_s, schema.name))

    @property
    def spec(self) -> ToolSpec:
        """Name, description and parameters for a model, and the tool's own limit."""
        return ToolSpec(self.schema.name, self.schema.description, self.schema.parameters, self.timeout_s)

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Check the arguments, run the function, render what it returned."""
        import asyncio  # here: who declares an environment needs no event loop

        checked = self.schema.check(arguments)
        try:
            value: Any = self.function(**checked)
            if inspect.isawaitable(value):
                value = await _awaited(value)
        except SystemExit as error:
            raise ToolExited(f"{self.schema.name} {deed(error)}") from error
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_asked_for():
                raise
            raise ToolFailed(f"{self.schema.name}: {type(error).__name__}: {error}") from error
        return value if isinstance(value, ToolResult) else result_of(value, self.schema.name)


def no_result_within(name: str, limit_s: float | None) -> str:
    """What an agent reads of a call that took too long."""
    return f"{name}: no result within {limit_s or 0:g} s"


def _is_asked_for() -> bool:
    """Whether the call was cancelled; else its function raised CancelledError by itself."""
    import asyncio

    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def result_of(value: Any, name: str) -> ToolResult:
    """A tool's return value as an agent reads it: an Image, a list of texts and Images, or anything that
    `text_of` takes. Raises ToolFailed."""
    parts = list(value) if isinstance(value, list | tuple) else [value]
    images = [part for part in parts if isinstance(part, Image)]
    if not images:
        return ToolResult(text_of(value, name))
    if not all(isinstance(part, Image | str) for part in parts):
        raise ToolFailed(f"{name}: images stand beside other values", "return a list of Image and str")
    return ToolResult("\n".join(map(str, parts)), images=checked_images(images))


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
