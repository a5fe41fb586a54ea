"""What a turn begins with between the template's markers is its reasoning, apart from what it says."""

import pytest

from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.parsing import read_message, read_turn, with_reasoning
from upcycle.playing.script_player import turn_of

CALL = '<tool_call>{"name": "look"}</tool_call>'
LOOK = (ToolCall("look", {}),)


@pytest.mark.parametrize(
    ("text", "is_open", "turn"),
    [
        ("OOM", False, AssistantTurn("OOM")),
        ("<think>\nhm\n</think>\n\nOOM", False, AssistantTurn("OOM", reasoning="hm")),
        ("\n<think></think>OOM\n", False, AssistantTurn("OOM\n")),
        ("hm\n</think>\n\nOOM", True, AssistantTurn("OOM", reasoning="hm")),
        ("hm\n</think>\n\nOOM", False, AssistantTurn("hm\n</think>\n\nOOM")),  # nothing opened it
        ("<think>hm", False, AssistantTurn("", reasoning="hm")),
        ("hm", True, AssistantTurn("", reasoning="hm")),
        (f"<think>hm</think>{CALL}", False, AssistantTurn("", LOOK, reasoning="hm")),
        (f"<think>hm {CALL}", False, AssistantTurn("", LOOK, reasoning="hm")),  # left open
        (f"<think>{CALL}</think>OOM", False, AssistantTurn("OOM", reasoning=CALL)),  # considered, not made
        ("I <think>hm</think> OOM", False, AssistantTurn("I <think>hm</think> OOM")),
        ("<think>a</think>b</think>c", False, AssistantTurn("b</think>c", reasoning="a")),
    ],
)
def test_reasoning_is_read_apart(text: str, is_open: bool, turn: AssistantTurn) -> None:
    assert read_turn(text, is_open=is_open) == turn


def test_a_malformed_call_after_reasoning_is_still_an_error() -> None:
    turn = read_turn("<think>hm</think><tool_call>{")
    assert (turn.reasoning, turn.tool_calls) == ("hm", ())
    assert turn.parse_error == "<tool_call> without </tool_call>"
    assert turn.text == "<tool_call>{"


def test_both_in_one_text_are_read_again_as_they_were() -> None:
    assert with_reasoning("", "OOM") == "OOM"
    assert with_reasoning("hm", "OOM") == "<think>\nhm\n</think>\n\nOOM"
    assert read_turn(with_reasoning("hm", "OOM")) == AssistantTurn("OOM", reasoning="hm")


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"content": "OOM", "reasoning_content": "hm"}, AssistantTurn("OOM", reasoning="hm")),
        ({"content": "OOM", "reasoning": "hm\n"}, AssistantTurn("OOM", reasoning="hm")),
        ({"content": "<think>hm</think>OOM"}, AssistantTurn("OOM", reasoning="hm")),
        ({"content": "OOM", "reasoning": None}, AssistantTurn("OOM")),
        ({"content": "OOM", "reasoning": {"effort": 1}}, AssistantTurn("OOM")),
        (
            {"content": "<think>hm</think>", "tool_calls": [{"function": {"name": "look"}}]},
            AssistantTurn("", LOOK, reasoning="hm"),
        ),
    ],
)
def test_a_servers_message_may_have_it_apart_already(message: dict[str, object], turn: AssistantTurn) -> None:
    assert read_message(message) == turn


def test_a_script_that_thinks_is_read_as_a_policy_is() -> None:
    assert turn_of("<think>hm</think>OOM") == AssistantTurn("OOM", reasoning="hm")
    assert turn_of({"content": "<think>hm</think>OOM"}) == AssistantTurn("OOM", reasoning="hm")
