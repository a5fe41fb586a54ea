"""Policies of several architectures, and batches of random rollouts for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.services.grpo_trainer.tiny import VOCAB, new_model, tiny_config

from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.protocol import BatchGroup


def config_of(architecture: str, *, tied: bool) -> Any:
    """Weights so large that no two policies agree by chance."""
    width = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
    return tiny_config(architecture, **width, tie_word_embeddings=tied, initializer_range=0.2)


def policy(directory: Path, architecture: str = "qwen3", *, tied: bool = True) -> Path:
    """A HF directory with random weights."""
    torch.manual_seed(0)
    new_model(config_of(architecture, tied=tied)).module.save_pretrained(directory)
    return directory


def rollouts(seed: int, *, groups: int = 3, members: int = 4, reward: float = 1.0) -> list[BatchGroup]:
    """Groups of multi-turn rollouts of very unequal length; every second one earned `reward`."""
    generator = torch.Generator().manual_seed(seed)
    return [_group(f"run-g{number:05d}", members, reward, generator) for number in range(groups)]


def _group(name: str, members: int, reward: float, generator: torch.Generator) -> BatchGroup:
    prompt = _ids(5, generator)
    made = tuple(_episode(f"{name}-e{number}", prompt, generator) for number in range(members))
    return BatchGroup(name, made, tuple(reward * (number % 2) for number in range(members)))


def _episode(name: str, prompt: list[int], generator: torch.Generator) -> EpisodeTokens:
    """One to five turns of sampled tokens, with an observation between two turns."""
    ids, trained, turns = list(prompt), [False] * len(prompt), [0] * len(prompt)
    for turn in range(int(torch.randint(1, 6, (), generator=generator))):
        sampled, observed = (int(n) for n in torch.randint(1, 9, (2,), generator=generator))
        ids += _ids(observed + sampled, generator)
        trained += [False] * observed + [True] * sampled
        turns += [turn] * (observed + sampled)
    logprobs = (-4 * torch.rand(len(ids), generator=generator)).tolist()
    return EpisodeTokens(f"traj-{name}", (TokenRow.of(ids, trained, logprobs, turns),), 1.0, 0, 0, 0)


def _ids(count: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(VOCAB, (count,), generator=generator).tolist()
    return ids
