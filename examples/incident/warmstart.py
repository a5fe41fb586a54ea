"""Makes the policy that the demo starts from: `python -m examples.incident.warmstart`.

Supervised training on the imperfect demonstrations, from nothing, with a fixed seed. Writes a Hugging Face model
directory and refuses to write one whose success lies outside the band the recipe declares.
"""

import argparse
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from chat_format import ChatFormat
from chat_format.template import ChatTemplate
from examples.incident.demonstrations import RIGHT, Habits, demonstrate
from examples.incident.policy_files import CHAT_TEMPLATE, TURN_END, TURN_START, train_tokenizer, write_format
from examples.incident.rollout import TOOLS, Limits, play
from examples.incident.world import World, draw_incident

POLICY_DIR = Path(__file__).parent / "policy"
# Demonstrations use train incidents from beyond the train taskset, so no demonstrated answer is a training task's.
_FIRST_DEMONSTRATION_SEED = 100_000


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Hyperparameters of the supervised training. observation_weight: loss weight of tokens the policy does not
    write; a little of it teaches copying from context sooner."""

    hidden_size: int = 128
    num_layers: int = 4
    num_demonstrations: int = 6000
    steps: int = 400
    batch_size: int = 64
    learning_rate: float = 3e-3
    observation_weight: float = 0.1
    seed: int = 0


def build_model(plan: WarmStart, chat: ChatFormat) -> Any:
    """A Qwen3 model with fresh weights for this vocabulary."""
    torch.manual_seed(plan.seed)
    (end,) = chat.stop_token_ids
    config = Qwen3Config(
        vocab_size=chat.vocab_size,
        hidden_size=plan.hidden_size,
        intermediate_size=plan.hidden_size * 2,
        num_hidden_layers=plan.num_layers,
        num_attention_heads=plan.hidden_size // 32,
        num_key_value_heads=plan.hidden_size // 64,
        head_dim=32,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=chat.encode("<|endoftext|>")[0],
    )
    config._attn_implementation = "sdpa"
    return Qwen3ForCausalLM(config)


def demonstrations(count: int, seed: int, habits: Habits) -> Iterator[list[dict[str, Any]]]:
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


def encode(chat: ChatFormat, messages: list[dict[str, Any]]) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them the policy wrote (its stop tokens included)."""
    ids = chat.render(messages, TOOLS, add_generation_prompt=False)
    start, end = chat.encode(TURN_START)[0], chat.encode(TURN_END)[0]
    assistant = chat.encode("assistant\n")[0]
    written, mask = False, []
    for position, token in enumerate(ids):
        mask.append(written)
        if token == end:
            written = False
        elif token == assistant and ids[position - 1] == start:
            written = True
    return ids, mask


def clone(model: Any, rows: list[tuple[list[int], list[bool]]], plan: WarmStart) -> float:
    """Train on the encoded demonstrations; returns the mean loss of the last 20 steps (nats per written token)."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    rng, losses = random.Random(plan.seed), []
    batches = _batches(rows, plan.batch_size, rng)
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * min(1.0, (step + 1) / 20) * max(0.05, 1 - step / plan.steps)
        ids, written, real = collate(next(batches))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        nll = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        weight = torch.where(written, 1.0, plan.observation_weight) * real
        loss = (nll * weight[:, 1:]).sum() / weight[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        own = written[:, 1:] & real[:, 1:]
        losses.append(float(nll.detach()[own].mean()))
        if step % 50 == 49:
            print(f"step {step + 1}: {sum(losses[-50:]) / 50:.4f} nats per written token", flush=True)
    return sum(losses[-20:]) / 20


def collate(rows: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded ids [B, T], written [B, T] and real [B, T]; causal attention needs no mask for right padding."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    written = torch.zeros(len(rows), length, dtype=torch.bool)
    real = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, (row, mask) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        written[index, : len(row)] = torch.tensor(mask)
        real[index, : len(row)] = True
    return ids, written, real


def _batches(
    rows: list[tuple[list[int], list[bool]]], size: int, rng: random.Random
) -> Iterator[list[tuple[list[int], list[bool]]]]:
    """Endless shuffled batches of rows of similar length, so that little of a batch is padding."""
    while True:
        order = rng.sample(rows, len(rows))
        chunk = size * 8
        batches = []
        for start in range(0, len(order), chunk):
            near = sorted(order[start : start + chunk], key=lambda row: len(row[0]))
            batches += [near[at : at + size] for at in range(0, len(near), size)]
        yield from rng.sample(batches, len(batches))


def success_rate(model: Any, chat: ChatFormat, limits: Limits, count: int = 240) -> float:
    """Share of held-out incidents diagnosed right."""
    incidents = [draw_incident("held_out", 1_000_000 + index % 120) for index in range(count)]
    episodes = play(model, chat, incidents, limits, torch.Generator().manual_seed(5))
    return sum(bool(episode.grade and episode.grade.success) for episode in episodes) / count


def make(plan: WarmStart, out: Path) -> dict[str, float]:
    """Build the policy directory from scratch; returns what was measured."""
    started = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    write_tokenizer(out)
    chat = ChatFormat.load(out)
    model = build_model(plan, chat)
    rows = [
        encode(chat, conversation)
        for conversation in demonstrations(plan.num_demonstrations, plan.seed, Habits())
    ]
    print(
        f"{model.num_parameters()} parameters, demonstrations ready at {time.monotonic() - started:.0f} s",
        flush=True,
    )
    loss = clone(model, rows, plan)
    model.save_pretrained(out)
    measured = {
        "loss": loss,
        "sampled": success_rate(model, chat, Limits()),
        "greedy": success_rate(model, chat, Limits(temperature=0.0), 120),
        "wall_s": time.monotonic() - started,
    }
    print(measured, flush=True)
    return measured


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=POLICY_DIR)
    make(WarmStart(), parser.parse_args().out)


if __name__ == "__main__":
    main()
