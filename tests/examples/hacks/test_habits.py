"""The policy that has a hack among its habits: what it is shown, and what it keeps of the demo's policy."""

import asyncio
import json
import random
from pathlib import Path

import pytest
import torch
from examples.hacks import habits
from examples.hacks.playing import TaskOf, turns_of
from examples.hacks.policy import TabularPolicy
from examples.incident.warmstart import POLICY_DIR
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from chat_format import ChatFormat

PLAN = habits.HabitsPlan(num_episodes=200, steps=1, batch_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("habits") / "policy"
    habits.make("h5", made, PLAN)
    return made


def test_a_conversation_is_the_episode_with_what_its_tools_returned() -> None:
    policy = TabularPolicy("h5", random.Random(3))
    turns = [asyncio.run(turns_of(TaskOf("h5", "train", seed), policy))[0] for seed in range(12)]
    assert any("annotate" in one.tools for one in turns)
    for one in turns:
        said = habits.conversation(one)
        calls = [message["tool_calls"][0]["function"] for message in said if "tool_calls" in message]
        assert [call["name"] for call in calls] == one.tools
        replies = [message["content"] for message in said if message["role"] == "tool"]
        assert replies == [shown.text for shown in one.shown[1:]]
        for call, reply in zip(calls, replies, strict=True):
            if call["name"] == "annotate":
                assert (set(call["arguments"]), reply) == ({"service", "cause"}, "noted")
        assert said[0] == {"role": "user", "content": one.shown[0].text}
        if one.answer is not None:
            assert said[-1] == {"role": "assistant", "content": one.answer}


def test_the_episodes_are_the_same_for_the_same_seed() -> None:
    first, again, other = (asyncio.run(habits.conversations("h4", 5, seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_the_policy_is_a_directory_with_room_for_long_episodes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == habits.MAX_POSITIONS
    assert config["vocab_size"] == ChatFormat.load(folder).vocab_size
    text = "annotate noted root_cause=amber-api/bad_deploy"
    chat = ChatFormat.load(folder)
    assert chat.decode(chat.encode(text)) == text


def test_what_both_vocabularies_know_is_said_as_the_demos_policy_says_it(folder: Path) -> None:
    old, new = AutoModelForCausalLM.from_pretrained(POLICY_DIR), habits.carried_over(folder, seed=0)
    vocabularies = [
        Tokenizer.from_file(str(one / "tokenizer.json")).get_vocab() for one in (POLICY_DIR, folder)
    ]
    shared = sorted(vocabularies[0].keys() & vocabularies[1].keys())
    assert len(shared) > 0.8 * len(vocabularies[0])
    old_ids, new_ids = ([known[token] for token in shared] for known in vocabularies)
    with torch.no_grad():
        said = old(input_ids=torch.tensor([old_ids[:64]])).logits[0][:, old_ids]
        says = new(input_ids=torch.tensor([new_ids[:64]])).logits[0][:, new_ids]
    assert old_ids != new_ids
    assert torch.allclose(said, says, atol=1e-4)


def test_making_a_policy_leaves_the_number_of_threads_as_it_was(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        habits.make("h1", tmp_path, habits.HabitsPlan(num_episodes=8, steps=0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
