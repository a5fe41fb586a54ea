"""The committed policy: a real Hugging Face directory that starts weak but able, and speaks the format."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.incident.demonstrations import RIGHT, Habits, demonstrate
from examples.incident.grading import grade
from examples.incident.names import FIRST, SECOND, service_names
from examples.incident.recipe import RECIPE
from examples.incident.rollout import TOOLS, Episode, Limits, play
from examples.incident.sft import encode
from examples.incident.tasks import held_out
from examples.incident.world import World, draw_incident
from transformers import AutoModelForCausalLM, AutoTokenizer

from chat_format import ChatFormat, assistant_message, tool_message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
POLICY = Path(__file__).parents[3] / "examples" / "incident" / "policy"
MAX_POLICY_BYTES = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat.load(POLICY)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)  # other workers use the other core
    return AutoModelForCausalLM.from_pretrained(POLICY)


@pytest.fixture(scope="module")
def episodes(chat: ChatFormat, model: Any) -> list[Episode]:
    incidents = [draw_incident("held_out", task.args["seed"]) for task in held_out.tasks]
    sampling = RECIPE.run.sampling
    limits = Limits(sampling.max_turns, sampling.max_tokens_per_turn, sampling.temperature)
    return play(model, chat, incidents, limits, torch.Generator().manual_seed(1))


def conversation(seed: int, habits: Habits) -> tuple[list[dict[str, Any]], World]:
    world = World(draw_incident("held_out", seed))
    return demonstrate(world, random.Random(seed), habits), world


def test_the_directory_is_a_small_qwen3_in_plain_hugging_face_files(model: Any) -> None:
    names = {file.name for file in POLICY.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    assert json.loads((POLICY / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert 500_000 <= model.num_parameters() <= 3_000_000
    assert sum(file.stat().st_size for file in POLICY.iterdir()) <= MAX_POLICY_BYTES


def test_the_transformers_tokenizer_renders_and_encodes_the_same_ids(chat: ChatFormat) -> None:
    theirs = AutoTokenizer.from_pretrained(POLICY)
    for seed, habits in ((1_000_000, RIGHT), (1_000_001, Habits()), (1_000_002, Habits())):
        messages, _ = conversation(seed, habits)
        ids = theirs.apply_chat_template(messages, tools=TOOLS, tokenize=True, return_dict=False)
        assert list(ids) == chat.render(messages, TOOLS, add_generation_prompt=False)


def test_every_word_of_a_name_is_one_token_whatever_stands_beside_it(chat: ChatFormat) -> None:
    for first in FIRST:
        assert len(chat.encode(first)) == 1
    for second in SECOND:
        assert len(chat.encode(f"-{second}")) == 1
    for name in service_names("held_out"):
        pair = chat.encode(name)
        for text in (
            f"\n{name} is",
            f'{{"service":"{name}"}}',
            f"service: {name} cause: ",
            f"calls {name} x",
        ):
            ids = chat.encode(text)
            assert any(ids[at : at + 2] == pair for at in range(len(ids)))


@pytest.mark.parametrize("text", ["", "naïve café ☕ \u200b 汉字 \x00\x7f", "SELECT * FROM t; -- 10% {}"])
def test_any_text_survives_the_tokenizer(chat: ChatFormat, text: str) -> None:
    assert chat.decode(chat.encode(text)) == text


def test_prompts_and_episodes_stay_within_the_laptops_budget(chat: ChatFormat) -> None:
    for seed in range(1_000_000, 1_000_040):
        messages, _ = conversation(seed, RIGHT)
        assert len(chat.render(messages[:1], TOOLS)) <= 150
        assert len(chat.render(messages, TOOLS)) <= 300
        assert len(messages) // 2 <= RECIPE.run.sampling.max_turns


def test_a_played_conversation_extends_to_its_own_rendering(chat: ChatFormat) -> None:
    messages, _ = conversation(1_000_003, RIGHT)
    ids, written = encode(chat, messages)
    tokens, history = chat.render(messages[:1], TOOLS), list(messages[:1])
    for reply in [message["content"] for message in messages if message["role"] == "tool"]:
        end = next(at for at in range(len(tokens), len(ids)) if ids[at] in chat.stop_token_ids)
        sampled = ids[len(tokens) : end + 1]
        assert all(written[len(tokens) : end + 1])
        history.append(assistant_message(chat.parse(sampled)))
        tokens += sampled + chat.bridge(history, [tool_message(reply)], TOOLS)
        history.append(tool_message(reply))
        assert tokens == ids[: len(tokens)]
    assert not any(
        flag for token, flag in zip(ids, written, strict=True) if chat.decode([token]) == "<tool_response>"
    )


def test_right_demonstrations_are_right_and_habitual_ones_mostly_are_not() -> None:
    def rate(habits: Habits) -> float:
        right = 0
        for seed in range(200):
            messages, world = conversation(seed, habits)
            right += grade(world.incident, messages[-1]["content"], world.num_calls).success
            world.close()
        return right / 200

    assert rate(RIGHT) == 1.0
    assert rate(Habits()) < 0.5


def test_sampled_success_on_held_out_incidents_starts_inside_the_declared_band(
    episodes: list[Episode],
) -> None:
    wins = sum(bool(episode.grade and episode.grade.success) for episode in episodes)
    # Three standard errors of 120 draws around the band: what a test of this size can tell.
    slack = 3 * (0.25 * 0.75 / len(episodes)) ** 0.5
    assert RECIPE.start_at_least - slack <= wins / len(episodes) <= RECIPE.start_at_most + slack
    assert wins > 0


def test_episodes_are_short_and_their_logprobs_are_the_models_own(
    chat: ChatFormat, model: Any, episodes: list[Episode]
) -> None:
    assert max(len(episode.token_ids) for episode in episodes) <= 400
    assert sum(len(episode.token_ids) for episode in episodes) / len(episodes) <= 300
    for episode in episodes[:4]:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([episode.token_ids])).logits[0, :-1]
        logprobs = torch.log_softmax(logits, -1)
        for position, token in enumerate(episode.token_ids[1:], start=1):
            expected = float(logprobs[position - 1, token]) if episode.sampled[position] else 0.0
            assert episode.logprobs[position] == pytest.approx(expected, abs=1e-4)
    assert chat.stop_token_ids


def test_greedy_decoding_is_not_already_good(chat: ChatFormat, model: Any) -> None:
    incidents = [draw_incident("held_out", task.args["seed"]) for task in held_out.tasks[:60]]
    played = play(model, chat, incidents, Limits(temperature=0.0), torch.Generator())
    assert sum(bool(one.grade and one.grade.success) for one in played) / len(played) <= 0.6
