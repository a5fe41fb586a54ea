"""What a sampled turn says, word for word: the text, the calls, and the error that the policy reads."""

import random
import re

import pytest

from upcycle.harness import AssistantTurn, ToolCall, parsing
from upcycle.harness.parsing import parse_turn


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def test_text_without_a_call_is_kept_to_the_last_blank() -> None:
    assert parse_turn("  the answer\n") == AssistantTurn("  the answer\n")
    assert parse_turn("") == AssistantTurn("")


def test_calls_are_read_in_order_and_the_text_around_them_is_trimmed() -> None:
    text = (
        " Look." + call('\n{"name": "a", "arguments": {"n": 2}}\n') + " Then " + call('{"name": "b"}') + " "
    )
    assert parse_turn(text) == AssistantTurn("Look. Then", (ToolCall("a", {"n": 2}), ToolCall("b", {})))


def test_arguments_in_any_script_and_escaped_pairs_are_read() -> None:
    body = '{"name": "a", "arguments": {"é": "\\ud83d\\ude00", "deep": [1.5, null, true]}}'
    assert parse_turn(call(body)).tool_calls == (ToolCall("a", {"é": "😀", "deep": [1.5, None, True]}),)


def test_a_turn_that_only_opens_calls_is_read_in_one_pass() -> None:
    """It took 17 s for 8,192 of them, and four times as long for twice as many: this would take an hour."""
    text = call('{"name": "a"}') + "<tool_call>" * 130_000
    assert parse_turn(text) == AssistantTurn(text, parse_error="<tool_call> without </tool_call>")


def test_turns_are_split_as_one_expression_over_the_whole_text_splits_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = re.compile("<tool_call>(.*?)</tool_call>", re.DOTALL)
    monkeypatch.setattr(parsing, "_parse_call", lambda body, tools: ToolCall(body, {}))
    rng = random.Random(5)
    for _ in range(5000):
        text = "".join(
            rng.choices(("<tool_call>", "</tool_call>", "<tool_", "call>", "a", "\n"), k=rng.randrange(9))
        )
        calls, rest = tuple(ToolCall(body, {}) for body in whole.findall(text)), whole.sub("", text)
        if "<tool_call>" in rest:
            expected = AssistantTurn(text, parse_error="<tool_call> without </tool_call>")
        elif "</tool_call>" in rest:
            expected = AssistantTurn(text, parse_error="</tool_call> without <tool_call>")
        else:
            expected = AssistantTurn(rest.strip() if calls else rest, calls)
        assert parse_turn(text) == expected


MALFORMED = [
    (call("look"), "tool call is not JSON: Expecting value: line 1 column 1 (char 0)"),
    (call("[]"), "tool call is a JSON list, expected an object"),
    (call('"a"'), "tool call is a JSON str, expected an object"),
    (call('{"arguments": {}}'), "tool call has no name"),
    (call('{"name": ""}'), "tool call has no name"),
    (call('{"name": 3}'), "tool call has no name"),
    (call('{"name": "a", "arguments": "{}"}'), "arguments of 'a' are str, expected an object"),
    (call('{"name": "a", "arguments": null}'), "arguments of 'a' are NoneType, expected an object"),
    (call('{"name": "a", "x": NaN}'), "tool call holds NaN, which is not JSON"),
    (call('{"name": "a", "x": -Infinity}'), "tool call holds -Infinity, which is not JSON"),
    (call('{"name": "a", "x": 1e999}'), "tool call holds a value that cannot be sent on: ValueError"),
    (
        call('{"name": "a", "x": "\\ud800"}'),
        "tool call holds a value that cannot be sent on: UnicodeEncodeError",
    ),
    (call("[" * 100_000), "tool call is nested too deeply"),
    ('<tool_call>{"name": "a"}', "<tool_call> without </tool_call>"),
    ('{"name": "a"}</tool_call>', "</tool_call> without <tool_call>"),
    (call('{"name": "a"}') + "<tool_call>", "<tool_call> without </tool_call>"),
    (call('{"name": "a"}') + call("[]"), "tool call is a JSON list, expected an object"),
]


@pytest.mark.parametrize(("text", "said"), MALFORMED)
def test_a_call_that_cannot_be_used_is_an_error_with_the_raw_turn_and_no_call(text: str, said: str) -> None:
    assert parse_turn(f" {text}\n") == AssistantTurn(f" {text}\n", (), said)
