"""Recorded batches for one optimizer step: a policy with random weights, and rows as plain arrays in a file.

Two kinds. uniform: one turn, all prompts and all completions of one length. ragged: several turns with
observations between them, the longest row 16 times the shortest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from grpo_math.packing import TrainingRow
from grpo_trainer.learner.packed_model import PackedModel, new_module

VOCABULARY = 260


@dataclass(frozen=True, slots=True)
class Shape:
    """P prompts of `prompt` tokens, G members each; what follows a prompt has `shortest` to `longest` tokens,
    of which every other `turn` tokens were sampled (all of them where shortest is longest)."""

    name: str
    prompts: int
    members: int
    prompt: int
    shortest: int
    longest: int
    turn: int = 0

    @property
    def is_ragged(self) -> bool:
        return self.shortest < self.longest


def new_policy(directory: Path) -> PackedModel:
    """624,512 parameters: 4 layers, hidden 128, 4 query and 2 key heads, tied embeddings."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = PackedModel(new_module(config))
    model.module.save_pretrained(directory)
    return model


def draw(shape: Shape, seed: int = 0) -> list[TrainingRow]:
    """Rows of random tokens whose sampler is a little off the policy's uniform guess; half of each group
    earned a reward."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for number in range(shape.prompts):
        prompt = _ids(shape.prompt, generator)
        for member, length in enumerate(_lengths(shape, generator)):
            sampled = torch.ones(length, dtype=torch.bool)
            if shape.turn:
                sampled = (torch.arange(length) // shape.turn) % 2 == 0
                sampled[-1] = True
            trained = torch.cat([torch.zeros(shape.prompt, dtype=torch.bool), sampled])
            noise = 0.1 * torch.randn(trained.shape[0], generator=generator)
            rows.append(
                TrainingRow(
                    row_id=f"{number:04d}/{member:02d}",
                    group_id=f"{number:04d}",
                    token_ids=torch.cat([prompt, _ids(length, generator)]),
                    trained=trained,
                    sampler_logprobs=noise - float(np.log(VOCABULARY)),
                    advantage=member % 2 - 0.5,
                )
            )
    return rows


def _lengths(shape: Shape, generator: torch.Generator) -> list[int]:
    """Evenly spread on a logarithmic scale within a group, so that every group holds both ends."""
    if not shape.is_ragged:
        return [shape.shortest] * shape.members
    at = torch.linspace(0, 1, shape.members)[torch.randperm(shape.members, generator=generator)]
    return [round(shape.shortest * (shape.longest / shape.shortest) ** float(x)) for x in at]


def _ids(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(VOCABULARY, (count,), generator=generator)


def write_rows(path: Path, rows: list[TrainingRow], *, prompt: int) -> None:
    """As arrays padded on the right; lengths say what is real. prompt: tokens of every prompt."""
    longest = max(row.token_ids.shape[0] for row in rows)

    def padded(values: list[Tensor]) -> np.ndarray[Any, Any]:
        return np.stack([np.pad(v.numpy(), (0, longest - v.shape[0])) for v in values])

    np.savez(
        path,
        ids=padded([row.token_ids for row in rows]),
        trained=padded([row.trained for row in rows]),
        sampler=padded([row.sampler_logprobs for row in rows]),
        lengths=np.array([row.token_ids.shape[0] for row in rows]),
        advantages=np.array([row.advantage for row in rows], dtype=np.float32),
        groups=np.array([row.group_id for row in rows]),
        prompt=np.array(prompt),
    )


def read_rows(path: Path) -> list[TrainingRow]:
    """The rows of a file."""
    arrays = np.load(path)
    return [
        TrainingRow(
            row_id=f"{number:05d}",
            group_id=str(arrays["groups"][number]),
            token_ids=torch.tensor(arrays["ids"][number][:length]),
            trained=torch.tensor(arrays["trained"][number][:length]),
            sampler_logprobs=torch.tensor(arrays["sampler"][number][:length]),
            advantage=float(arrays["advantages"][number]),
        )
        for number, length in enumerate(arrays["lengths"])
    ]
