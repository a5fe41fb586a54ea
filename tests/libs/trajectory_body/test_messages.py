"""Turns as messages: what was said, then what each tool answered."""

from trajectory_body import body_messages, turn_messages
from upcycle.api.trajectory.v1.trajectory_pb2 import Message, ToolCall, ToolResult, TrajectoryBody, Turn


def test_a_turn_is_its_words_with_its_calls_then_their_results() -> None:
    call = ToolCall(call_id="c1", name="add", arguments_json='{"a": 1}')
    turn = Turn(text="let me see", tool_calls=[call], tool_results=[ToolResult(call_id="c1", content="3")])
    assert turn_messages(turn) == [
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]


def test_a_turn_without_calls_names_none() -> None:
    assert turn_messages(Turn(text="3")) == [{"role": "assistant", "content": "3"}]


def test_a_prompt_message_keeps_its_tool_calls_and_leaves_empty_fields_out() -> None:
    call = ToolCall(call_id="c1", name="add", arguments_json="{}")
    prompt = [
        Message(role="user", content="add"),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="3", tool_call_id="c1", name="add"),
    ]
    body = TrajectoryBody(prompt=prompt, turns=[Turn(text="3")])
    assert body_messages(body) == [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
        {"role": "assistant", "content": "3"},
    ]


def test_reasoning_is_in_the_message_as_templates_write_it() -> None:
    turn = Turn(text="3", reasoning="1 + 2")
    assert turn_messages(turn)[0]["content"] == "<think>\n1 + 2\n</think>\n\n3"
