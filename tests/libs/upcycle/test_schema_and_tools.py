"""Typed functions as tools: the schema a model sees, and what happens to arguments and results."""

import dataclasses
import enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

from upcycle import Environment
from upcycle.environment.schema import call_schema
from upcycle.environment.tools import ToolResult, bounded_text, text_of
from upcycle.errors import ArgumentsInvalid, DefinitionError, ToolFailed, UnknownName


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Window:
    start: int
    end: int = 10


class Filter(TypedDict, total=False):
    service: str
    limit: int


class Page(BaseModel):
    number: int


def everything(
    text: str,
    count: int,
    ratio: float,
    flag: bool,
    level: Literal["low", "high"],
    colour: Colour,
    names: list[str],
    limits: dict[str, int],
    window: Window,
    page: Page,
    where: Filter,
    note: Annotated[str, "free text"] = "none",
    maybe: int | None = None,
) -> None:
    """Do everything.

    It goes on here.

    Args:
        text: what to look for,
            over two lines
        count (int): how many

    Returns:
        nothing
    """


GOOD: dict[str, Any] = {
    "text": "x",
    "count": 2,
    "ratio": 1,
    "flag": True,
    "level": "low",
    "colour": "red",
    "names": ["a"],
    "limits": {"a": 1},
    "window": {"start": 1},
    "page": {"number": 3},
    "where": {"service": "db"},
}


def test_the_schema_says_what_the_annotations_say() -> None:
    schema = call_schema(everything)
    assert schema.description == "Do everything.\n\nIt goes on here."
    properties = schema.parameters["properties"]
    assert properties["text"] == {"type": "string", "description": "what to look for, over two lines"}
    assert properties["count"] == {"type": "integer", "description": "how many"}
    assert properties["ratio"] == {"type": "number"}
    assert properties["level"] == {"enum": ["low", "high"]}
    assert properties["colour"] == {"enum": ["red", "blue"]}
    assert properties["names"] == {"type": "array", "items": {"type": "string"}}
    assert properties["limits"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert properties["window"]["required"] == ["start"]
    assert properties["page"]["properties"]["number"]["type"] == "integer"
    assert properties["where"]["properties"]["limit"] == {"type": "integer"}
    assert properties["note"] == {"type": "string", "description": "free text", "default": "none"}
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert schema.parameters["required"] == list(GOOD)
    assert schema.parameters["additionalProperties"] is False


def test_arguments_become_what_the_function_declares() -> None:
    checked = call_schema(everything).check(GOOD)
    assert checked["ratio"] == 1.0
    assert isinstance(checked["ratio"], float)
    assert checked["colour"] is Colour.RED
    assert checked["window"] == Window(1, 10)
    assert checked["page"] == Page(number=3)
    assert checked["where"] == {"service": "db"}
    assert call_schema(everything).check({**GOOD, "count": 2.0})["count"] == 2


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("text", 3, "everything.text: expected a string, got 3"),
        ("count", "2", "expected an integer, got '2'"),
        ("count", True, "expected an integer, got True"),
        ("count", 2.5, "expected an integer"),
        ("ratio", "1", "expected a number"),
        ("flag", 1, "expected a boolean"),
        ("level", "middle", "one of ['low', 'high']"),
        ("colour", "green", "one of ['red', 'blue']"),
        ("names", "a", "expected an array"),
        ("names", ["a", 3], "everything.names[1]: expected a string"),
        ("limits", {"a": "b"}, "everything.limits['a']: expected an integer"),
        ("window", {"end": 2}, "an object with ['start']"),
        ("window", {"start": 1, "middle": 2}, "fields ['end', 'start']"),
        ("page", {"number": "three"}, "number"),
        ("where", {"colour": 1}, "fields ['limit', 'service']"),
        ("maybe", "x", "int or NoneType"),
        ("extra", 1, "unknown argument 'extra'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, value: Any, text: str) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        call_schema(everything).check({**GOOD, name: value})
    assert text in str(caught.value)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ArgumentsInvalid, match="missing argument 'text'"):
        call_schema(everything).check({})


def test_functions_that_no_json_object_can_call_are_refused_when_declared() -> None:
    def variadic(*names: str) -> None: ...

    def positional(name: str, /) -> None: ...

    def strange(connection: complex) -> None: ...

    def unresolved(thing: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function in (variadic, positional, strange, unresolved):
        with pytest.raises(DefinitionError):
            call_schema(function)


async def test_tools_sync_and_async_and_their_results() -> None:
    env = Environment("tools")

    @env.tool()
    def record() -> Window:
        return Window(1)

    @env.tool("renamed")
    async def slow(count: int) -> list[int]:
        """Count."""
        return list(range(count))

    @env.tool()
    def silent() -> None: ...

    @env.tool()
    def own_error() -> ToolResult:
        return ToolResult("out of stock", is_error=True)

    assert (await env.call_tool("record", {})).text == '{"start": 1, "end": 10}'
    assert (await env.call_tool("renamed", {"count": 3})).text == "[0, 1, 2]"
    assert (await env.call_tool("silent", {})).text == ""
    assert (await env.call_tool("own_error", {})).is_error
    with pytest.raises(UnknownName, match="it has record, renamed, silent, own_error"):
        await env.call_tool("slow", {})
    assert record() == Window(1)  # a tool stays callable as it is


def test_an_environment_refuses_what_cannot_work() -> None:
    env = Environment("strict")

    @env.tool()
    def twice() -> None: ...

    with pytest.raises(DefinitionError, match="two tools called 'twice'"):
        env.tool("twice")(lambda: None)
    with pytest.raises(DefinitionError, match=r"write @env.tool\(\)"):
        env.tool(twice)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="not a generator"):
        env.scenario("flat")(lambda: "prompt")  # type: ignore[arg-type, return-value]
    with pytest.raises(DefinitionError, match="'slug' is reserved"):

        @env.scenario()
        async def clash(slug: str) -> Any:
            yield slug
            yield 1.0

    with pytest.raises(DefinitionError, match="non-empty"):
        Environment("")


def test_results_that_json_cannot_carry_are_a_tool_error() -> None:
    assert text_of({"a", "b"}, "t") == '["a", "b"]'
    assert text_of("ü", "t") == "ü"
    for value in (object(), float("nan"), b"bytes"):
        with pytest.raises(ToolFailed, match="not JSON"):
            text_of(value, "t")


@pytest.mark.parametrize("text", ["ü" * 1000, "x" * 2000])
def test_long_results_are_cut_at_a_character(text: str) -> None:
    assert bounded_text(text, None) == (text, False)
    assert bounded_text(text, 2000) == (text, False)
    cut, was_cut = bounded_text(text, 500)
    assert was_cut
    assert len(cut.encode()) <= 500
    assert "[truncated: 2000 bytes, limit 500" in cut
