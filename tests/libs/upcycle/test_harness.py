"""The turn loop over chat messages: what is run, what is answered, which budget ends it."""

from collections.abc import Sequence
from typing import Any

import pytest

from upcycle.harness import (
    AssistantTurn,
    StopReason,
    ToolCall,
    ToolOutcome,
    TurnLimits,
    parse_turn,
    play_turns,
)
from upcycle.harness.chat import ChatDriver, ChatReply, Messages, TokenBudgets
from upcycle.harness.context import compressed
from upcycle.harness.parsing import read_message
from upcycle.harness.turns import clip_text, is_same_text, was_refused

BUDGETS = TokenBudgets()
PROMPT = [{"role": "user", "content": "go"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'


class Scripted:
    """Says its texts in order, and keeps what it was asked."""

    def __init__(self, *texts: str | ChatReply) -> None:
        self._texts = list(texts)
        self.asked: list[Messages] = []
        self.max_tokens: list[int] = []

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        self.asked.append(list(messages))
        self.max_tokens.append(max_tokens)
        said = self._texts.pop(0)
        return said if isinstance(said, ChatReply) else ChatReply(parse_turn(said))


async def saw(call: ToolCall) -> ToolOutcome:
    return ToolOutcome(f"saw {call.arguments['at']}", duration_s=1.0)


async def played(
    player: Scripted, *, max_turns: int = 4, budgets: TokenBudgets = BUDGETS, **limits: int
) -> tuple[Any, ChatDriver]:
    driver = ChatDriver(PROMPT, (), player, saw, budgets=budgets)
    return await play_turns(driver, TurnLimits(max_turns, **limits)), driver


async def test_a_call_is_run_and_answered_under_its_id_and_plain_text_is_the_answer() -> None:
    player = Scripted(CALL + CALL, "done")
    ending, driver = await played(player)
    assert (ending.stop_reason, ending.answer) == (StopReason.ANSWERED, "done")
    asked, first, second = player.asked[1][1:]
    assert [call["id"] for call in asked["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert (first["role"], first["content"]) == ("tool", "saw x")
    assert [len(turn.outcomes) for turn in driver.turns] == [2, 0]


async def test_a_malformed_call_is_answered_with_what_is_wrong_and_how_to_go_on() -> None:
    player = Scripted("<tool_call>\n{broken\n</tool_call>", "done")
    ending, _ = await played(player)
    said, observed = player.asked[1][1:]
    assert "tool_calls" not in said
    assert observed["role"] == "user"
    assert observed["content"].startswith("Your last message could not be read: tool call is not JSON")
    assert observed["content"].endswith("Send a well-formed tool call, or a plain final answer.")
    assert ending.answer == "done"


@pytest.mark.parametrize("arguments", ["{broken", "[1]", '{"n": NaN}', '{"n": 1e999}', '{"n": "\\ud800"}'])
def test_malformed_arguments_of_a_server_are_a_parse_error_with_the_raw_call_in_the_text(
    arguments: str,
) -> None:
    row = {"id": "a", "function": {"name": "look", "arguments": arguments}}
    turn = read_message({"role": "assistant", "content": "hm", "tool_calls": [row]})
    assert turn.parse_error
    assert turn.tool_calls == ()
    assert turn.text == f'hm\n<tool_call>\n{{"name": "look", "arguments": {arguments}}}\n</tool_call>'


def test_a_servers_calls_are_read_as_those_of_a_text() -> None:
    row = {"id": "a", "function": {"name": "look", "arguments": '{"at": "</tool_call>"}'}}
    spelled = read_message({"content": None, "tool_calls": [row]})
    assert spelled == AssistantTurn("", (ToolCall("look", {"at": "</tool_call>"}),))
    no_arguments = {"function": {"name": "look", "arguments": ""}}
    assert read_message({"tool_calls": [no_arguments]}).tool_calls == (ToolCall("look", {}),)
    assert read_message({"content": CALL}) == parse_turn(CALL)
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}, {"type": "image_url"}]
    assert read_message({"content": parts}).text == "one two"
    assert read_message({"tool_calls": ["what"]}).parse_error == "tool call has no function"


@pytest.mark.parametrize(
    ("said", "max_turns", "budgets", "stop"),
    [
        ([CALL, CALL], 2, TokenBudgets(), StopReason.MAX_TURNS),
        ([ChatReply(AssistantTurn("no end"), was_cut=True)], 4, TokenBudgets(), StopReason.MAX_TOKENS),
        (
            [ChatReply(parse_turn(CALL), num_tokens=50)],
            4,
            TokenBudgets(per_turn=30, per_episode=50),
            StopReason.MAX_TOKENS,
        ),
    ],
)
async def test_a_budget_that_is_spent_ends_the_episode_without_an_answer(
    said: Sequence[Any], max_turns: int, budgets: TokenBudgets, stop: StopReason
) -> None:
    ending, _ = await played(Scripted(*said), max_turns=max_turns, budgets=budgets)
    assert (ending.stop_reason, ending.answer) == (stop, "")


async def test_a_turn_gets_what_the_episode_has_left() -> None:
    player = Scripted(ChatReply(parse_turn(CALL), num_tokens=45), "done")
    await played(player, budgets=TokenBudgets(per_turn=30, per_episode=50))
    assert player.max_tokens == [30, 5]


async def test_a_turn_that_was_cut_runs_no_tool() -> None:
    _, driver = await played(Scripted(ChatReply(parse_turn(CALL), was_cut=True)))
    assert driver.turns[0].outcomes == []


async def test_calls_and_results_beyond_their_limits_are_refused_and_cut() -> None:
    player = Scripted(CALL * 3, "done")
    _, driver = await played(player, max_tool_calls_per_turn=2, max_tool_result_chars=3)
    contents = [outcome.content for outcome in driver.turns[0].outcomes]
    cut = "saw\n[2 more characters were cut]"
    assert contents == [cut, cut, "refused: more than 2 tool calls in one turn"]
    assert [outcome.is_error for outcome in driver.turns[0].outcomes] == [False, False, True]
    assert [message["content"] for message in player.asked[1][2:]] == contents


LOOKED = parse_turn(CALL)


async def long_sight(call: ToolCall) -> ToolOutcome:
    return ToolOutcome("s" * 400)


async def test_a_full_context_is_shown_without_older_results_and_the_record_stays_whole() -> None:
    said = [ChatReply(LOOKED, num_tokens=tokens) for tokens in (200, 400, 600)]
    player = Scripted(*said, ChatReply(LOOKED, num_tokens=300), "done")
    budgets = TokenBudgets(per_turn=500, per_episode=1000, context="compress")
    driver = ChatDriver(PROMPT, (), player, long_sight, budgets=budgets)
    ending = await play_turns(driver, TurnLimits(9))
    assert (ending.stop_reason, ending.answer) == (StopReason.ANSWERED, "done")
    assert [turn.restarts_context for turn in driver.turns] == [False, False, False, True, False]
    shown = [one["content"] for one in player.asked[3] if one["role"] == "tool"]
    stub = "[an earlier result of 400 characters was left out]"
    assert shown == [stub, stub, "s" * 400]
    whole = [one["content"] for one in driver.messages if one["role"] == "tool"]
    assert whole == ["s" * 400] * 4
    ids = [one["tool_call_id"] for one in player.asked[3] if one["role"] == "tool"]
    assert ids == ["call-t0c0", "call-t1c0", "call-t2c0"]
    assert 0 < player.max_tokens[3] <= 500
    assert player.max_tokens[4] == 500  # as the server counted the shorter one: 1000 - 300 are left


async def test_a_context_that_gets_no_shorter_ends_the_episode() -> None:
    player = Scripted(ChatReply(LOOKED, num_tokens=1000))
    budgets = TokenBudgets(per_turn=500, per_episode=1000, context="compress")
    driver = ChatDriver(PROMPT, (), player, long_sight, budgets=budgets)
    assert (await play_turns(driver, TurnLimits(9))).stop_reason is StopReason.MAX_TOKENS
    assert len(driver.turns) == 1


def test_only_results_before_the_last_turn_are_left_out_and_only_once() -> None:
    call, result = {"role": "assistant", "content": ""}, {"role": "tool", "content": "x" * 100}
    short = {"role": "tool", "content": "ok"}
    messages = [*PROMPT, call, result, short, call, result]
    shorter = compressed(messages)
    assert shorter is not None
    stub = "[an earlier result of 100 characters was left out]"
    assert [one["content"] for one in shorter] == ["go", "", stub, "ok", "", "x" * 100]
    assert messages[2]["content"] == "x" * 100
    assert compressed(shorter) is None
    assert compressed(PROMPT) is None


@pytest.mark.parametrize(
    ("read", "whole", "is_same"),
    [
        ("3 left", "3 left", True),
        (clip_text("a" * 300, 256), "a" * 300, True),
        (clip_text("a" * 300, 256), "a" * 299, False),
        (clip_text("a" * 300, 256), "b" + "a" * 299, False),
        ("3 left\n[2 more characters were cut]", "3 left, 4", False),
        ("3 left", "3 left, 4 sold", False),
        ("\n[6 more characters were cut]", "3 left", False),
        ("", "", True),
    ],
)
def test_a_result_that_its_loop_clipped_is_the_same_text(read: str, whole: str, is_same: bool) -> None:
    assert is_same_text(read, whole) is is_same


async def test_a_call_that_was_refused_is_known_by_what_the_policy_read() -> None:
    driver = ChatDriver(PROMPT, [], Scripted(CALL * 3, "done"), saw, budgets=BUDGETS)
    await play_turns(driver, TurnLimits(4, max_tool_calls_per_turn=2))
    read = [outcome.content for outcome in driver.turns[0].outcomes]
    assert [was_refused(position, text) for position, text in enumerate(read)] == [False, False, True]
    assert not was_refused(1, read[2])
