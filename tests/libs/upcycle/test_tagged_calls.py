"""Tool calls in the tags of newer Qwen models: names, values, types, and what is malformed."""

from typing import Any

import pytest

from upcycle.harness import ToolCall
from upcycle.harness.parsing import parse_turn, read_message

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "share": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "where": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "limit": {"type": ["integer", "null"]},
    "unit": {"enum": ["1", "2"]},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "forecast", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]


def tagged(*parameters: tuple[str, str], name: str = "forecast") -> str:
    """As the template of Qwen3-Coder writes a call."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "Kiel", "Kiel"),
        ("city", "12", "12"),
        ("city", "null", "null"),
        ("city", '"Kiel"', '"Kiel"'),
        ("city", "two\nlines\n", "two\nlines\n"),
        ("city", "", ""),
        ("city", "a <b> & </c>", "a <b> & </c>"),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("share", "0.5", 0.5),
        ("share", "1", 1),
        ("exact", "true", True),
        ("exact", "False", False),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("where", "null", None),
        ("where", "7", "7"),
        ("limit", "null", None),
        ("limit", "None", None),
        ("unit", "1", "1"),
        ("unknown", "7", 7),
        ("unknown", "x", "x"),
    ],
)
def test_a_value_has_the_type_that_its_tool_gives_it(key: str, text: str, value: Any) -> None:
    (call,) = parse_turn(tagged((key, text)), TOOLS).tool_calls
    assert call == ToolCall("forecast", {key: value})
    assert type(call.arguments[key]) is type(value)


def test_several_calls_of_both_forms_are_read_in_order_with_the_text_around_them() -> None:
    json_call = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    turn = parse_turn(f"First. {tagged(('city', 'Kiel'), ('days', '2'))}{json_call} Then.", TOOLS)
    assert turn.tool_calls == (ToolCall("forecast", {"city": "Kiel", "days": 2}), ToolCall("look", {"at": 1}))
    assert turn.text == "First.  Then."
    assert parse_turn(tagged(), TOOLS).tool_calls == (ToolCall("forecast", {}),)


def test_without_the_tools_a_number_is_one() -> None:
    (call,) = parse_turn(tagged(("city", "Kiel"), ("days", "2"))).tool_calls
    assert call.arguments == {"city": "Kiel", "days": 2}
    assert read_message({"content": tagged(("days", "2"))}).tool_calls == (ToolCall("forecast", {"days": 2}),)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("<function=forecast>", "<function=…> without </function> at its end"),
        ("<function=forecast", "<function=…> without </function> at its end"),
        ("<function=a></function> and more", "<function=…> without </function> at its end"),
        ("<function=></function>", "tool call has no name"),
        (
            "<function=a>city: Kiel</function>",
            "'city: Kiel' stands where <parameter=NAME> or </function> belongs",
        ),
        ("<function=a><parameter=city>Kiel</function>", "<parameter=city> without </parameter>"),
        (
            "<function=a><parameter=n>1</parameter><parameter=n>2</parameter></function>",
            "parameter 'n' is given twice",
        ),
        (
            "<function=a><parameter=n>1e999</parameter></function>",
            "tool call holds a value that cannot be sent on",
        ),
    ],
)
def test_what_is_malformed_is_said_and_no_call_is_made(body: str, error: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    turn = parse_turn(text, TOOLS)
    assert turn.tool_calls == ()
    assert turn.text == text
    assert turn.parse_error is not None
    assert turn.parse_error.startswith(error)


@pytest.mark.parametrize(
    "part", ["<parameter=a>", "<parameter=", "<function=a>", "</function>", "<parameter=a></parameter>"]
)
def test_hostile_repetition_is_read_in_one_pass(part: str) -> None:
    """Twice over the rest from each part would take hours."""
    parse_turn(f"<tool_call><function=a>{part * 100_000}</function></tool_call>")


def test_a_number_that_python_would_not_read_stays_text() -> None:
    (call,) = parse_turn(tagged(("days", "9" * 5000)), TOOLS).tool_calls
    assert call.arguments["days"] == "9" * 5000
