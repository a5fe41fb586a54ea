"""Model output is hostile: any bytes parse to a turn, and a bad tool call is an error, not a call."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chat_format import ChatFormat, ToolCall

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


@SHARED_CHAT
@given(body=st.text(st.characters(codec="utf-8"), max_size=40))
def test_what_parses_as_a_call_can_be_sent_on(chat: ChatFormat, body: str) -> None:
    turn = chat.parse(chat.encode(call(body)))
    for found in turn.tool_calls:
        json.dumps(found.arguments, allow_nan=False, ensure_ascii=False).encode()


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
