"""What a reward model reads of an episode: never its grade, and nothing but a whole reward model reads it."""

from pathlib import Path
from typing import Any

import pytest
from tests.libs.reward_models.small_policy import MAX_LENGTH, write_policy

from chat_format import ChatFormat
from reward_models import RewardModelFacts, RewardModelRefused, conversation_of, read_facts
from reward_models.folder import FACTS, tokenizer_digest, write_facts
from reward_models.model import token_ids

CANARY = "quetzalcoatl"
LINE: dict[str, Any] = {
    "task": {"slug": "door", "args": {"expected": CANARY}, "split": CANARY},
    "messages": [
        {"role": "user", "content": "which door", "reward": CANARY},
        {
            "role": "assistant",
            "content": "I look",
            "grade": CANARY,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"door": 3}'},
                    "x": CANARY,
                }
            ],
        },
        {"role": "tool", "content": "it is red", "tool_call_id": "1", "is_success": CANARY},
        {"role": "assistant", "content": "red"},
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"properties": {"door": {}}}}}],
    "turns": [{"text": "I look", "reward": CANARY}],
    "answer": CANARY,
    "reward": CANARY,
    "success": CANARY,
    "subscores": [{"name": CANARY, "value": 1.0, "info": CANARY}],
    "policy_failure": CANARY,
    "failure_detail": CANARY,
    "states": [{"value": CANARY}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a policy, with the facts of a reward model: what is read before any weights are."""
    made = write_policy(tmp_path_factory.mktemp("orm"))
    write_facts(made, RewardModelFacts("policy", MAX_LENGTH, tokenizer_digest(made), ("t1",)))
    return made


def test_nothing_of_the_grade_enters_what_is_read(folder: Path) -> None:
    chat = ChatFormat.load(folder)
    text = chat.decode(token_ids(chat, conversation_of(LINE, "e"), 1000, "it"))
    assert CANARY not in text
    for part in ("which door", "I look", '"door":3', "it is red", "red", "look("):
        assert part in text


def test_a_line_whose_grade_is_another_is_read_alike(folder: Path) -> None:
    other = {**LINE, "reward": 0.0, "success": False, "subscores": [], "policy_failure": "context_spent"}
    assert conversation_of(LINE, "e") == conversation_of(other, "e")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"messages": []}, "e has no messages"),
        ({"messages": "hello"}, "its messages are no list"),
        ({"messages": [{"role": "user"}], "tools": {}}, None),
        ({"messages": [{"role": "user"}], "tools": "x"}, "its tools are no list"),
    ],
)
def test_a_line_that_says_nothing_is_refused(line: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert conversation_of(line, "e").tools == []
        return
    with pytest.raises(RewardModelRefused, match=said):
        conversation_of(line, "e")


def test_images_are_refused_by_name(folder: Path) -> None:
    seen = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}
    with pytest.raises(RewardModelRefused, match="traj-7 is nothing that it reads"):
        token_ids(ChatFormat.load(folder), conversation_of(seen, "traj-7"), 1000, "it")


def test_a_policy_is_no_reward_model(folder: Path, tmp_path: Path) -> None:
    assert read_facts(folder).tasks == ("t1",)
    with pytest.raises(RewardModelRefused, match=f"{tmp_path} is no reward model: it has no {FACTS}"):
        read_facts(tmp_path)
    with pytest.raises(RewardModelRefused, match="absent is no folder"):
        read_facts(tmp_path / "absent")


def test_another_tokenizer_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    with pytest.raises(RewardModelRefused, match="has another tokenizer"):
        read_facts(tmp_path)


FACTS_OF = '{"format": "upcycle-reward-model/1", "base": "b", "tokenizer": "", '


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"format": "x"}',
        '{"format": "upcycle-reward-model/1"}',
        FACTS_OF + '"max_tokens": "9", "tasks": []}',
        FACTS_OF + '"max_tokens": NaN, "tasks": []}',
        FACTS_OF + '"max_tokens": true, "tasks": []}',
        FACTS_OF + '"max_tokens": 9, "tasks": "abc"}',
        FACTS_OF + '"max_tokens": 9, "tasks": [[1]]}',
        "[" * 100_000,
    ],
)
def test_facts_that_are_damaged_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / FACTS).write_text(text)
    with pytest.raises(RewardModelRefused):
        read_facts(tmp_path)
