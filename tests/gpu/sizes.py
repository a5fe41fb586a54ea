"""A policy and batches large enough that a GPU's kernels have several blocks to compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from tests.services.grpo_trainer.tiny import tiny_config

from grpo_math.packing import TrainingRow
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.packed_model import new_module
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows

VOCAB: Final = 1000
CUDA: Final = "cuda"


def config(architecture: str = "qwen3") -> Any:
    """Two layers of 128 values, 4 heads of 32 over 2 of keys; weights so large that policies differ."""
    return tiny_config(
        architecture,
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.08,
        architectures=[{"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[architecture]],
    )


def policy(directory: Path, architecture: str = "qwen3") -> Path:
    """A HF directory with random weights, the same on every machine."""
    torch.manual_seed(0)
    new_module(config(architecture)).save_pretrained(directory)
    return directory


def groups(seed: int, *, count: int = 3, members: int = 4, longest: int = 300) -> list[BatchGroup]:
    """Rollouts of two turns that share their prompt and, in pairs, their first turn."""
    generator = torch.Generator().manual_seed(seed)
    return [_group(f"run-g{number:05d}", members, longest, generator) for number in range(count)]


def rows(seed: int, **sizes: int) -> list[TrainingRow]:
    """The rows of such groups."""
    return batch_rows(groups(seed, **sizes), credit=Credit("dr_grpo"), group_size=4).rows


def _group(name: str, members: int, longest: int, generator: torch.Generator) -> BatchGroup:
    prompt = _ids(97, generator)
    first = [_ids(61, generator) for _ in range((members + 1) // 2)]
    made = []
    for number in range(members):
        second = _ids(int(torch.randint(2, longest, (), generator=generator)), generator)
        made.append(_episode(f"{name}-e{number}", prompt, first[number // 2], second, generator))
    return BatchGroup(name, tuple(made), tuple(float(number % 2) for number in range(members)))


def _episode(
    name: str, prompt: list[int], first: list[int], second: list[int], generator: torch.Generator
) -> EpisodeTokens:
    ids = [*prompt, *first, *second]
    trained = [False] * len(prompt) + [True] * (len(first) + len(second))
    turns = [0] * (len(prompt) + len(first)) + [1] * len(second)
    logprobs = (-7 - torch.rand(len(ids), generator=generator)).tolist()
    return EpisodeTokens(f"traj-{name}", (TokenRow.of(ids, trained, logprobs, turns),), 1.0, 0, 0, 0)


def _ids(count: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(VOCAB, (count,), generator=generator).tolist()
    return ids
