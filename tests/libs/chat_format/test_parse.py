"""Model output is hostile: any bytes parse to a turn, and a bad tool call is an error, not a call."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chat_format import AssistantTurn, ChatFormat, ToolCall

ANY_IDS = st.lists(st.one_of(st.integers(-5, 400), st.integers()), max_size=60)
SHARED_CHAT = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@SHARED_CHAT
@given(ids=ANY_IDS)
def test_parse_accepts_any_ids(chat: ChatFormat, ids: list[int]) -> None:
    turn = chat.parse(ids)
    turn.text.encode()
    assert turn.parse_error is None or turn.tool_calls == ()


TEXT = st.text(max_size=8)
FINITE = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | FINITE | TEXT
HOSTILE = st.sampled_from([math.inf, -math.inf, math.nan, "\ud800", "a\udfffb"])
"""Numbers that JSON has not, and lone surrogates, which JSON can write as escapes and UTF-8 cannot."""


def json_objects(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=6)
    return st.dictionaries(TEXT, values, max_size=4)


@SHARED_CHAT
@given(arguments=json_objects(PLAIN | HOSTILE), spelled_out=st.booleans())
def test_what_parses_as_a_call_can_be_sent_on(
    chat: ChatFormat, arguments: dict[str, Any], spelled_out: bool
) -> None:
    """spelled_out: infinity as 1e999, which a JSON reader takes for a number."""
    body = json.dumps({"name": "look", "arguments": arguments})
    if spelled_out:
        body = body.replace("Infinity", "1e999")
    turn = chat.parse(chat.encode(call(body)))
    assert bool(turn.tool_calls) != bool(turn.parse_error)
    for found in turn.tool_calls:
        json.dumps(found.arguments, allow_nan=False, ensure_ascii=False).encode()


@SHARED_CHAT
@given(arguments=json_objects(PLAIN))
def test_every_plain_json_object_is_read_as_arguments(chat: ChatFormat, arguments: dict[str, Any]) -> None:
    turn = chat.parse(chat.encode(call(json.dumps({"name": "look", "arguments": arguments}))))
    assert turn.tool_calls == (ToolCall("look", arguments),)


def test_a_call_is_read_with_the_text_before_it_and_the_stop_token_ends_the_turn(chat: ChatFormat) -> None:
    body = '{"name": "search_logs", "arguments": {"service": "amber-cart", "n": 2}}'
    turn = chat.parse(chat.encode("Looking." + call(body) + "<|im_end|>" + call("junk")))
    assert turn.parse_error is None
    assert turn.text == "Looking."
    assert turn.tool_calls == (ToolCall("search_logs", {"service": "amber-cart", "n": 2}),)


def test_two_calls_in_one_turn_keep_their_order(chat: ChatFormat) -> None:
    turn = chat.parse(chat.encode(call('{"name": "a", "arguments": {}}') + call('{"name": "b"}')))
    assert [found.name for found in turn.tool_calls] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        call(""),
        call("{"),
        call("[]"),
        call('"name"'),
        call('{"arguments": {}}'),
        call('{"name": "", "arguments": {}}'),
        call('{"name": 3, "arguments": {}}'),
        call('{"name": "a", "arguments": []}'),
        call('{"name": "a", "arguments": "{}"}'),
        call('{"name": "a", "arguments": null}'),
        call('{"name": "a", "arguments": {"x": NaN}}'),
        call('{"name": "a", "arguments": {"x": -Infinity}}'),
        call('{"name": "a", "arguments": {"x": 1e999}}'),
        call('{"name": "a", "arguments": {"x": "\\ud800"}}'),
        call('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}"),
        call("[" * 100_000),
        call('{"name": "a"} {"name": "b"}'),
        '<tool_call>{"name": "a"}',
        '{"name": "a"}</tool_call>',
        call('{"name": "a"}') + "<tool_call>",
        "<tool_call>" + call('{"name": "a"}'),
    ],
)
def test_a_malformed_call_is_an_error_and_no_call(chat: ChatFormat, text: str) -> None:
    turn = chat.parse(chat.encode(text))
    assert turn.parse_error
    assert turn.tool_calls == ()


def test_ids_outside_the_vocabulary_are_an_error(chat: ChatFormat) -> None:
    assert chat.parse([chat.vocab_size]).parse_error
    assert chat.parse([-1]).parse_error
    assert chat.parse([2**70]).parse_error
    assert chat.parse([chat.vocab_size - 1]).parse_error != chat.parse([chat.vocab_size]).parse_error


def test_broken_utf8_becomes_replacement_characters(chat: ChatFormat) -> None:
    lone = chat.encode("é")[:1]
    assert chat.parse(lone).text == "�"


def test_plain_text_is_the_answer(chat: ChatFormat) -> None:
    turn = chat.parse(chat.encode("service: amber-cart cause: bad_deploy<|im_end|>"))
    assert (turn.text, turn.tool_calls, turn.parse_error) == (
        "service: amber-cart cause: bad_deploy",
        (),
        None,
    )


def test_reasoning_that_the_prompt_opened_is_read_apart(chat: ChatFormat) -> None:
    sampled = chat.encode("hm\n</think>\n\nOOM<|im_end|>")
    opened, closed = chat.encode("assistant\n<think>\n"), chat.encode("<think>\n\n</think>\n\n")
    assert chat.read(sampled, opened) == AssistantTurn("OOM", reasoning="hm")
    assert chat.read(sampled, closed).text == chat.parse(sampled).text == "hm\n</think>\n\nOOM"
    own = chat.encode("<think>hm</think>OOM<|im_end|>")
    assert chat.read(own, []) == AssistantTurn("OOM", reasoning="hm")
    assert chat.parse(own) == AssistantTurn("<think>hm</think>OOM")  # as a server without it answers
