"""Conversations as the policy would have been asked them: prompts untrained, answers to their stop token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.interactive.trainers import Library

from chat_format import ChatFormat
from grpo_trainer.domain.errors import InvalidInput
from grpo_trainer.domain.token_rows import episode_tokens
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.inputs import ConversationInput, Sample, turns_of
from grpo_trainer.interactive.preparing import Preparer
from grpo_trainer.interactive.wire import inputs_from_wire
from grpo_trainer.learner.prepared import LossSpec, PreparedRow
from grpo_trainer.retrying import RetryUntilAvailable
from upcycle.api.training.v1 import interactive_pb2 as pb

POLICY = Path(__file__).parents[4] / "examples" / "incident" / "policy"
CALL = {"type": "function", "function": {"name": "restart", "arguments": {"service": "api"}}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "operator"},
    {"role": "user", "content": "api is down"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "ok"},
    {"role": "assistant", "content": "api"},
]


def conversation(messages: list[dict[str, Any]], *, last_turn_only: bool = False) -> ConversationInput:
    return ConversationInput("c", tuple(messages), (), 1.0, last_turn_only)


async def test_a_conversation_is_one_row_whose_answers_are_trained() -> None:
    samples = await ChatConversations().samples(conversation(MESSAGES), POLICY)
    chat = ChatFormat.load(POLICY)
    assert len(samples) == 2
    for sample in samples:
        assert sample.output_ids[-1] in chat.stop_token_ids
        assert not set(sample.output_ids[:-1]) & chat.stop_token_ids
    turns = turns_of("c", samples)
    assert [turn.restarts_context for turn in turns] == [True, False]
    tokens = episode_tokens("c", turns, temperature=1.0, train_parse_errors=True)
    (row,) = tokens.rows
    whole = chat.render(MESSAGES, (), add_generation_prompt=False)
    assert list(row.token_ids) == whole[: len(row.token_ids)]
    trained = [token for token, is_trained in zip(row.token_ids, row.trained, strict=True) if is_trained]
    assert trained == [*samples[0].output_ids, *samples[1].output_ids]
    assert chat.parse(samples[0].output_ids).tool_calls[0].arguments == {"service": "api"}
    assert chat.parse(samples[1].output_ids).text == "api"


async def test_last_turn_only_trains_the_last_answer() -> None:
    (sample,) = await ChatConversations().samples(conversation(MESSAGES, last_turn_only=True), POLICY)
    assert ChatFormat.load(POLICY).parse(sample.output_ids).text == "api"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (MESSAGES[:2], "no assistant message"),
        ([{"role": "robot", "content": ""}, *MESSAGES[1:]], "role is 'robot'"),
    ],
)
async def test_a_conversation_that_cannot_be_rendered_is_refused(
    messages: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        await ChatConversations().samples(conversation(messages), POLICY)


async def prepared(given: ConversationInput) -> PreparedRow:
    preparer = Preparer(Library({}), ChatConversations(), RetryUntilAvailable())
    (found,) = await preparer.prepare([given], POLICY, LossSpec("cross_entropy"))
    (row,) = found.rows
    return row


async def test_what_the_policy_reads_trains_as_much_as_is_asked() -> None:
    """The first token of a row excepted, which nothing predicts. Answers keep their own weight."""
    alone = await prepared(replace(conversation(MESSAGES), weight=2.0))
    both = await prepared(replace(conversation(MESSAGES), weight=2.0, observation_weight=0.25))
    assert both.token_ids == alone.token_ids
    assert set(alone.weights or ()) == {0.0, 2.0}
    assert both.weights is not None
    assert both.weights[1:] == [weight or 0.25 for weight in (alone.weights or ())[1:]]
    assert both.weights[0] == 0.0
    assert both.trained == [False] + [True] * (len(both.token_ids) - 1)


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), 1e7])
def test_an_observation_weight_that_is_none_is_refused(weight: float) -> None:
    given = pb.Conversation(name="c", observation_weight=weight)
    with pytest.raises(InvalidInput, match="observation_weight is"):
        inputs_from_wire(pb.Batch(inputs=[pb.TrainingInput(conversation=given)]))


@pytest.mark.parametrize("text", ["[", "[" * 500_000])
def test_tools_that_cannot_be_read_are_refused_by_name(text: str) -> None:
    given = pb.Conversation(name="c", tools_json=text)
    with pytest.raises(InvalidInput, match="c: tools_json is not JSON"):
        inputs_from_wire(pb.Batch(inputs=[pb.TrainingInput(conversation=given)]))


def test_a_prompt_that_repeats_all_earlier_tokens_continues_the_row() -> None:
    one, two, three = (
        Sample([1, 2], [3], [-0.1]),
        Sample([1, 2, 3, 4], [5, 6], [-0.2, -0.3]),
        Sample([1, 9, 3], [7], [-0.4]),
    )
    turns = turns_of("t", [one, two, three])
    assert [list(turn.new_prompt_ids) for turn in turns] == [[1, 2], [4], [1, 9, 3]]
    assert [turn.restarts_context for turn in turns] == [True, False, True]
    with pytest.raises(InvalidInput, match="2 output tokens and 1 logprobs"):
        turns_of("t", [Sample([1], [2, 3], [-0.1])])
