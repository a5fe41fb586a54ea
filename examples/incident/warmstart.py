"""Makes the policy that the demo starts from: `python -m examples.incident.warmstart`.

Supervised training from nothing, with a fixed seed, in three phases: drills and right demonstrations teach
the skills, imperfect demonstrations instil the habits that reinforcement learning has to break. Writes a
Hugging Face model directory, and refuses to keep one whose success lies outside the recipe's band.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from chat_format import ChatFormat
from chat_format.template import ChatTemplate
from examples.incident.demonstrations import RIGHT, Habits, Message, demonstrate
from examples.incident.recipe import RECIPE
from examples.incident.rollout import TOOLS, Limits, play
from examples.incident.sft import Row, batches, drill, encode, sft_step
from examples.incident.tasks import FIRST_SEED, NUM_HELD_OUT
from examples.incident.world import World, draw_incident
from policy_files.tiny_format import CHAT_TEMPLATE, END_OF_TEXT, train_tokenizer, write_format

POLICY_DIR = Path(__file__).parent / "policy"
# Demonstrations use train incidents from beyond the train taskset: no training task was ever demonstrated.
_FIRST_DEMONSTRATION_SEED = 100_000
_REPORT_EVERY_STEPS = 40


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Hyperparameters. Each phase is a number of optimizer steps.

    habits_ramp: share of the last phase over which right demonstrations give way to imperfect ones; a sudden
    change would cost skill. observation_weight: loss weight of tokens that the policy does not write.
    initializer_range: 0.02, the library's default, is for wide models; at this width copying forms late.
    max_positions: longest conversation, in tokens.
    """

    hidden_size: int = 128
    num_layers: int = 4
    initializer_range: float = 0.08
    max_positions: int = 512
    drill_steps: int = 160
    skill_steps: int = 320
    habit_steps: int = 160
    habits_ramp: float = 0.5
    drill_batch: int = 32
    batch_size: int = 16
    learning_rate: float = 3e-3
    observation_weight: float = 0.3
    num_demonstrations: int = 4000
    seed: int = 0


def build_model(plan: WarmStart, chat: ChatFormat) -> Any:
    """A Qwen3 model with fresh weights for this vocabulary."""
    torch.manual_seed(plan.seed)
    (end,), (pad,) = chat.stop_token_ids, chat.encode(END_OF_TEXT)
    config = Qwen3Config(
        vocab_size=chat.vocab_size,
        hidden_size=plan.hidden_size,
        intermediate_size=plan.hidden_size * 2,
        num_hidden_layers=plan.num_layers,
        num_attention_heads=plan.hidden_size // 32,
        num_key_value_heads=plan.hidden_size // 64,
        head_dim=32,
        initializer_range=plan.initializer_range,
        max_position_embeddings=plan.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


def demonstrations(count: int, seed: int, habits: Habits) -> Iterator[list[Message]]:
    """Conversations over distinct train incidents."""
    rng = random.Random(seed)
    for index in range(count):
        world = World(draw_incident("train", _FIRST_DEMONSTRATION_SEED + index))
        try:
            yield demonstrate(world, rng, habits)
        finally:
            world.close()


def write_tokenizer(path: Path) -> None:
    """Train the tokenizer on demonstrations and write the format files."""
    template = ChatTemplate(CHAT_TEMPLATE, {})
    corpus = [
        template.render(conversation, TOOLS, add_generation_prompt=False)
        for habits in (RIGHT, Habits())
        for conversation in demonstrations(1500, 1, habits)
    ]
    write_format(path, train_tokenizer(corpus))


class Apprentice:
    """A model in training: one AdamW over all phases, and a running report of the loss."""

    def __init__(self, model: Any, plan: WarmStart) -> None:
        self._model, self._plan = model, plan
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
        )
        self._losses: list[float] = []

    def learn(self, rows: list[Row], learning_rate: float) -> None:
        """One optimizer step."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._model.train()
        self._losses.append(sft_step(self._model, self._optimizer, rows, self._plan.observation_weight))
        if len(self._losses) % _REPORT_EVERY_STEPS == 0:
            recent = self._losses[-_REPORT_EVERY_STEPS:]
            _report(f"step {len(self._losses)}: {sum(recent) / len(recent):.3f} nats per written token")


def train(model: Any, chat: ChatFormat, plan: WarmStart) -> None:
    """All three phases."""
    rng = random.Random(plan.seed)
    apprentice = Apprentice(model, plan)
    for step in range(plan.drill_steps):
        names = 2 + 4 * step // plan.drill_steps
        warm_up = min(1.0, (step + 1) / 20)
        rows = [drill(chat, rng, names) for _ in range(plan.drill_batch)]
        apprentice.learn(rows, plan.learning_rate * warm_up)
    right, habitual = (
        batches(
            [encode(chat, one) for one in demonstrations(plan.num_demonstrations, plan.seed, habits)],
            plan.batch_size,
            rng,
        )
        for habits in (RIGHT, Habits())
    )
    steps = plan.skill_steps + plan.habit_steps
    for step in range(steps):
        into_habits = (step - plan.skill_steps + 1) / (plan.habits_ramp * plan.habit_steps)
        source = habitual if rng.random() < into_habits else right
        if step < plan.skill_steps:
            decay = 1.0 - 0.67 * step / plan.skill_steps
        else:
            decay = 0.33 * max(0.05, (steps - step) / plan.habit_steps)
        apprentice.learn(next(source), plan.learning_rate * decay)


def success_rate(model: Any, chat: ChatFormat, limits: Limits, attempts: int) -> float:
    """Share of right diagnoses on the held-out taskset's incidents."""
    first = FIRST_SEED["held_out"]
    incidents = [draw_incident("held_out", first + index) for index in range(NUM_HELD_OUT)] * attempts
    episodes = play(model, chat, incidents, limits, torch.Generator().manual_seed(5))
    return sum(bool(episode.grade and episode.grade.success) for episode in episodes) / len(episodes)


def make(plan: WarmStart, out: Path) -> dict[str, float]:
    """Build a policy directory from scratch; returns what was measured."""
    started = time.monotonic()
    write_tokenizer(out)
    chat = ChatFormat.load(out)
    model = build_model(plan, chat)
    _report(f"{model.num_parameters():,} parameters, vocabulary {chat.vocab_size}")
    train(model, chat, plan)
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    return {
        "sampled": success_rate(model, chat, Limits(), 2),
        "greedy": success_rate(model, chat, Limits(temperature=0.0), 1),
        "wall_s": time.monotonic() - started,
    }


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Entry point: replaces --out only with a policy whose start is inside the declared band."""
    parser = argparse.ArgumentParser(description="Make the policy that the demo starts from.")
    parser.add_argument("--out", type=Path, default=POLICY_DIR)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        measured = make(WarmStart(), Path(scratch))
        _report(str(measured))
        if not RECIPE.start_at_least <= measured["sampled"] <= RECIPE.start_at_most:
            raise SystemExit(
                f"sampled success {measured['sampled']:.3f} is outside "
                f"{RECIPE.start_at_least}..{RECIPE.start_at_most}: {out} is left as it was"
            )
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path(scratch).iterdir()):
            (out / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    main()
